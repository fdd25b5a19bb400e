-- KEYS[1] fence of the key, KEYS[2] what is written; ARGV[1] fence, ARGV[2] event.
-- 1: written. 0: refused, nothing is written.
local fence, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and seen > fence then
	return 0
end
redis.call('SET', KEYS[1], fence)
redis.call('RPUSH', KEYS[2], fence .. ' ' .. ARGV[2])
return 1
