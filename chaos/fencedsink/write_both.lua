-- KEYS[1] fence of the key, KEYS[2] what is written, KEYS[3] token of the key, as older applications
-- have it; ARGV[1] fence, ARGV[2] event, ARGV[3] token. 1: written. 0: refused, nothing is written.
local fence, seen = ARGV[1], redis.call('GET', KEYS[1])
local token, before = ARGV[3], redis.call('GET', KEYS[3])
if seen and seen > fence or before and (#before > #token or #before == #token and before > token) then
	return 0
end
redis.call('SET', KEYS[1], fence)
redis.call('SET', KEYS[3], token)
redis.call('RPUSH', KEYS[2], fence .. ' ' .. ARGV[2])
return 1
