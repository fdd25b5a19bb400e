-- KEYS[1] fence of the key, KEYS[2] what is written; ARGV[1] fencing token, ARGV[2] event.
-- 1: written. 0: refused, nothing is written.
-- A token has up to 19 digits, and a number in Lua keeps 15: compare them as text.
local token, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and (#seen > #token or #seen == #token and seen > token) then
	return 0
end
redis.call('SET', KEYS[1], token)
redis.call('RPUSH', KEYS[2], token .. ' ' .. ARGV[2])
return 1
