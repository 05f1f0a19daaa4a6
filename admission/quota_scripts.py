"""What the store computes for exact quotas: reserve, settle, beat. Lua, run by Redis or Valkey as one step.

Tokens are counts, times the server's own (`TIME`, microseconds); no gateway's clock is asked. The rate is
GCRA in its continuous-state form (ITU-T I.371, annex A: a leaky bucket of content `x`), so that it admits
exactly what `fleet.bucket.RateBucket` admits. Tokens in flight are kept by gateway process, each with an
end that its signs of life move on. Prevents: two gateways reading the same level before either charges,
a killed gateway's reservations staying for ever, and a refund that mints tokens.

Keys of one tenant share a hash tag, so they lie on one node of a cluster:
    {<prefix>:<tenant>}:quota    hash: x, at, T and R (totals), t:<process>, r:<process>
    {<prefix>:<tenant>}:alive    sorted set: process -> when it counts as gone
"""

from __future__ import annotations

from admission.quota_wire import Script

_BEGIN = """
local quota, alive, me = KEYS[1], KEYS[2], ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function number(name) return tonumber(redis.call('HGET', quota, name) or '0') end
local function put(name, value) redis.call('HSET', quota, name, string.format('%.17g', value)) end
local function hold(process, tokens, requests)
  put('T', math.max(0, number('T') + tokens - number('t:' .. process)))
  put('R', math.max(0, number('R') + requests - number('r:' .. process)))
  if tokens == 0 and requests == 0 then
    redis.call('HDEL', quota, 't:' .. process, 'r:' .. process)
  else
    put('t:' .. process, tokens)
    put('r:' .. process, requests)
  end
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', alive, '-inf', now)) do
  hold(gone, 0, 0)
  redis.call('ZREM', alive, gone)
end
local function live(life_us)
  redis.call('ZADD', alive, now + life_us, me)
  redis.call('PEXPIRE', quota, 86400000)
  redis.call('PEXPIRE', alive, 86400000)
end
local function content(rate)
  local passed = math.max(0, now - number('at'))
  return number('x') - passed * rate / 60000000
end
local function fill(value)
  put('x', math.max(0, value))
  put('at', now)
end
"""

#: ARGV: process, life us, tokens, rate/min, burst, most tokens, most requests; a bound below 0 is off.
#: A bound of 0 is named before others. Returns {1} or {0, which bound, its value, used, wait in us or -1}.
RESERVE = Script(
    _BEGIN
    + """
local life, tokens, rate, burst = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local most_tokens, most_requests = tonumber(ARGV[6]), tonumber(ARGV[7])
local T, R = number('T'), number('R')
local answer = {1}
if rate == 0 then return {0, 'tokens_per_minute', 0, 0, -1} end
if most_requests == 0 then return {0, 'concurrent_requests', 0, R, -1} end
if most_tokens == 0 and T + tokens > 0 then return {0, 'in_flight_tokens', 0, T, -1} end
if most_requests >= 0 and R + 1 > most_requests then
  return {0, 'concurrent_requests', most_requests, R, -1}
end
if most_tokens >= 0 and T + tokens > most_tokens then
  return {0, 'in_flight_tokens', most_tokens, T, -1}
end
if rate >= 0 then
  local x = math.max(0, content(rate))
  local over = x + math.min(tokens, burst) - burst
  if over > 0 then
    return {0, 'tokens_per_minute', rate, math.ceil(x), math.ceil(over * 60000000 / rate)}
  end
  fill(x + tokens)
  answer[2] = math.floor(burst - x - tokens)
end
hold(me, number('t:' .. me) + tokens, number('r:' .. me) + 1)
live(life)
return answer
"""
)

#: ARGV: process, life us, tokens held, tokens charged, tokens used, rate/min (below 0: not charged).
SETTLE = Script(
    _BEGIN
    + """
local life, held, charged = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local used, rate = tonumber(ARGV[5]), tonumber(ARGV[6])
hold(me, math.max(0, number('t:' .. me) - held), math.max(0, number('r:' .. me) - 1))
if rate >= 0 then fill(math.max(0, content(rate)) + used - charged) end
live(life)
return {1}
"""
)

#: ARGV: process, life us, tokens and requests it holds in truth, tokens to charge on top, rate/min.
BEAT = Script(
    _BEGIN
    + """
local life, tokens, requests = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local more, rate = tonumber(ARGV[5]), tonumber(ARGV[6])
hold(me, tokens, requests)
if rate >= 0 and more > 0 then fill(math.max(0, content(rate)) + more) end
live(life)
return {1, number('T'), number('R')}
"""
)

SCRIPTS = [RESERVE, SETTLE, BEAT]
