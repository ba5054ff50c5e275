"""The queries of the differential suite, one per line: proven ones, ones that raise in both engines, ones left to Spark."""

# ruff: noqa: E501  one query is one line
from __future__ import annotations

PROJECTIONS = """
select * from events
select events.* from events
select e.id, E.I, e.S from events e
select ID, I from EVENTS
select id, st.a, st.b, st.n.z, ST.N.T from events
select id, e.st.a, e.st.n.z + 1 from events e
select id, arr, tags, mp, st, u, bin, fx from events
select id, i + 1, i - 1, k * 2, -k, - k + 5 from events where k is not null and i between -1000 and 1000
select id, m + k, m - k, m * k, k + 1L, 1 + m from events
select id, l - k, f + f, f * 2, f + k, x + k, x * 1.5, d + 0.5, d - f, d * d from events where l between -100 and 100
select id, p + p, p - p, p * p, p + q, p - q, p * q, q + q, p + 1, p * 2, 1 - p, p + 0.5, p * 1.25, p + k, k * p, p + m from events
select id, x + p, p * x from events
select id, x / 2, k / 2, k / 4.0, x / 0.5, k / 3, m / 7, f / 2, 5 / 2, 1 / 3 from events
select id, x / k, k / (k + 1), m / k, f / k from events
select id, p / 2, p / 3, p / 7.5, p / k, q / 3, p / p as pp from events where p <> 0
select id, 10 / p as r, p / q as s from events where p <> 0 and q > 0
select id, k % 2, i % 7, l % 10, m % -3, x % 2, d % 3, f % 2, -7 % 3 from events
select id, k div 2, m div 7, l div 3, -7 div 2, i div k from events
select id, 1.5, 1.50, 0.5, 10, 2147483647, 2147483648, -2147483648, -1, - 1.5, 3L, 1.5D, 'str', "dq", true, false, null from events
select id, date'2026-01-01', timestamp'2026-01-01 00:00:00', timestamp'2026-01-01 12:34:56.789', timestamp'2026-01-01T00:00:00Z' from events
select timestamp_ntz'2026-01-01 00:00:00', timestamp'2026-01-01 00:00:00+02:00', date'0001-01-01', date'9999-12-31'
select 1
select 1 as a, 'x' as b
select 0.00, 0.10, 100.00, 1., .5, 00012, 1.0e0, -0.5D, -3L, 12345678901234567890.5
select id as `a b`, i as `A"q` from events
select distinct c from events
select distinct c, b, k from events
select distinct d from events
select distinct f, d from events
select distinct bin, dt, ts, p from events
select i i, k as K, s as `Überschrift` from events
select id, if(b, 1, 2), if(i > 0, 'p', 'n'), if(b, i, l), if(b, x, k) from events
select id, case when i > 1 then 1 else 0 end, case i when 1 then 'a' when 2 then 'b' end, case when b then p else q end from events
select id, case when b then i when i > 0 then l else null end, case c when 'red' then 1 else 2 end from events
select id, case when k > 2 then p else k end as mixed, case when b then dt else ts end from events
select id, coalesce(i, k), coalesce(i, l, 0), coalesce(p, 1), coalesce(s, c, 'none'), coalesce(f, 0), coalesce(dt, date'2000-01-01') from events
select id, nvl(i, 0), ifnull(s, ''), nullif(i, 1), nullif(s, 'a'), nullif(p, 1), nullif(d, 0.0), coalesce(null, i), nullif(d, d) from events
select id, isnull(i), isnotnull(s) from events
select id, int(x), bigint(k), double(k), float(k), string(k), boolean(k), date(ts), timestamp(dt), date(ts) + 1, bigint(k + 1) from events
select id, 1e3, 1.5e-2, 25e-1, 1e10 as large, 1e5D, x + 1e2, -1e2 from events
select id, greatest(i, k), least(i, k, 1), greatest(d, x), least(d, x), greatest(p, q), greatest(s, c), least(dt, date'2000-01-01') from events
select id, greatest(f, d), least(f, k) from events
select id, greatest(f, null), least(null, d), greatest(zero, null), least(zero, null) from events
select id, floor(p), ceil(q), floor(cast(p as decimal(10, 0))), ceil(cast(q as decimal(20, 0))) * 2 from events
select id, max(x) over (order by id), min(x) over (order by id desc) from events where x > 0
select id, abs(k), abs(x), abs(d), abs(p), abs(f), abs(m), abs(-5) from events
select id, abs(i) from events where i > -2147483648
select id, cast(i as bigint), cast(k as double), cast(i as string), cast(l as string), cast(b as string), cast(b as int), cast(i as boolean) from events
select id, cast(i + 1 as bigint) from events where i < 100
select id, cast(k as decimal(10,2)), cast(p as decimal(12,4)), cast(p as decimal(10,1)), cast(p as int), cast(q as bigint), cast(p as string), cast(q as string) from events where i < 10
select id, cast(x as int), cast(x as bigint), cast(x as float), cast(f as double), cast(p as double), cast(l as double), cast(l as float), x::int, k::string from events
select id, cast(ts as date), cast(tn as date), cast(dt as timestamp), cast(dt as string), cast(ts as timestamp_ntz), cast(tn as timestamp), date(ts), to_date(ts) from events
select id, cast(cast(i as bigint) as string), cast(st.a as bigint), cast(null as int), cast('5' as int), cast('2026-01-01' as date), '2026-01-02'::date, cast('2026-01-01 10:00:00' as timestamp) from events
select id, round(x, 2), round(x), round(x, 1), round(d, 2), round(p, 1), round(p), round(q, 2), round(q, 4), round(k), round(k, 2) from events
select id, floor(x), ceil(x), ceiling(x), floor(p), ceil(q), floor(i), ceil(l), floor(k / 2) from events
select id, floor(f), floor(d), ceil(d), ceil(f), round(d, 6) from events
select id, sqrt(x), sqrt(k), sqrt(d), sqrt(f) from events
select id, cast(frac as string), concat(frac, '', p), cast(cast(0.5 as decimal(3,3)) as string), cast(lim as string) from events
select id, cast(date_add(dt, 1) as string), concat(dt, '!') from events where dt < date'2030-01-01'
select id, -lim, abs(lim), -frac, abs(frac), -w from events where lim > -2 and lim < 2 and (w is null or w > -2)
select id, least(x, zero), greatest(x, 1.5D), least(k, x), -zero, abs(zero), zero * 1, zero + 0, coalesce(zero, -0.0D), if(b, zero, d) from events where x <> 0
select id, zero = 0 as a, zero < 0 as b, zero >= -0.0D as c, zero in (0.0D, 7D) as g, zero <=> -0.0D as h, l = 9007199254740992e0 as j, lim = 1.5e0 as k, l <= 9007199254740992D as m from events where lim = 1.5 or lim is null
select id, length(s), char_length(s), character_length(c), len(s), length(bin), length('x') from events
select id, upper(c), lower(c), ucase(c), lcase(c), upper('abc') from events
select id, substring(s, 1, 2), substr(s, 2, 3), substring(s, 2), substr(s, 3), left(s, 2), right(s, 2), left(s, 0), right(s, 100), substring(s, 1, 0) from events
select id, trim(s), ltrim(s), rtrim(s), replace(s, 'a', 'bb'), replace(s, 'b', '') from events
select id, startswith(s, 'a'), endswith(s, c), contains(s, c), contains(s, ''), startswith(c, s), endswith(s, 'é') from events
select id from events where startswith(s, 'a') or not contains(s, 'b') or endswith(s, c)
select id, concat(s, c), s || c, s || '-' || c, concat(s, i, '-', b), concat(s), c || k, concat(dt, ' ', p) from events
select id, s like 'a%', s like '%b', s like 'a_b', s not like '%a%', s like '', s like '%', s like '_', c like 'r%d' from events
select id, year(ts), quarter(ts), month(ts), weekofyear(ts), day(ts), dayofmonth(ts), dayofweek(ts), weekday(ts), dayofyear(ts), hour(ts), minute(ts), second(ts) from events
select id, year(dt), quarter(dt), month(dt), weekofyear(dt), day(dt), dayofweek(dt), weekday(dt), dayofyear(dt), hour(tn), minute(tn), second(tn), year(tn) from events
select id, extract(year from ts) as y, extract(day from dt) as d, extract(hour from ts) as h, extract(week from dt) as w from events
select id, extract(dayofweek from ts) as w, extract(doy from ts) as d, extract(quarter from dt) as q, extract(month from ts) as m, extract(minute from ts) as n from events
select id, date_trunc('year', ts), date_trunc('quarter', ts), date_trunc('MONTH', ts), date_trunc('week', ts), date_trunc('day', ts) from events
select id, date_trunc('hour', ts), date_trunc('minute', ts), date_trunc('second', ts), date_trunc('month', dt), trunc(dt, 'month'), trunc(dt, 'year'), trunc(ts, 'week') from events
select id, date_add(dt, 1), date_sub(dt, 1), dateadd(dt, 30), date_add(ts, k), dt + 1, dt - 1 from events where dt < '9999-01-01'
select id, datediff(dt, date'2020-01-01'), date_diff(ts, dt), datediff('2026-01-01', dt), last_day(dt), last_day(ts) from events
select id, ts + interval 1 hour, ts - interval '1' day, ts + interval 90 minutes, ts + interval 30 seconds, ts - interval 2 weeks from events
select id, tn + interval 1 hour, dt + interval 1 day, dt + interval 1 month, ts + interval 2 months, dt - interval 1 year, ts - interval 1 month, tn + interval 3 months from events where dt < '9999-01-01'
select id, dt - interval 3 days as earlier from events
select id, unix_micros(ts), pmod(k, 3), pmod(l, 7), pmod(m, 3000000000), pmod(i, 10), pmod(-7, 3) from events
select id, ts - interval '0.000001' second * pmod(unix_micros(ts), 3600000000) as w, tn - interval '0.000001' second * pmod(unix_micros(cast(tn as timestamp)), 7000000) as x from events
select id, cast(cast(k as decimal(30,0)) as double) as a, cast(cast(p as decimal(38,2)) as double) as b, cast(cast(p as decimal(20,4)) as double) / 7 as c, cast(k as decimal(38,10)) / 2.0D as d from events
select id, size(arr), size(tags), cardinality(arr), size(mp), mp['a'], mp['zz'], array_contains(arr, 1), array_contains(tags, 'x') from events
select id, arr[0] from events where size(arr) > 0
select id, arr[1], tags[0] from events where size(arr) > 1 and size(tags) > 0
select id, ts < now(), current_date() >= dt, now() = current_timestamp(), current_date = cast(now() as date), current_timestamp > ts from events
select id, mod(k, 3), mod(m, 7) from events
select id, (st).a, (st).n.z, (st.n).Z + 1, coalesce(st, st).a, lines from events
select id, lines[0].sku, lines[0].qty + 1, lines[0] from events where size(lines) > 0
select id, weekday(dt) + 1, (k + 1) * 2, -(-k), not b, not (b and true), (k) from events
"""

PREDICATES = """
select id from events where i = 1
select id from events where i <> 1
select id from events where i != 1 and not i > 5
select id from events where i < l
select id from events where i <=> k
select id from events where s <=> null
select id, i = 1, i <=> 1, i <> 1, i < k, i <= l, i > 1.5 as cut, p > 1, p >= k, x > p, l = d, d = d, f = d, f > 0.1 from events
select id from events where d > 5
select id from events where d >= 5 or d is null
select id from events where d < 5
select id from events where d <> 1.5
select id from events where not d > 5
select id from events where not (d between 0 and 10)
select id from events where f > 1
select id from events where f = 0.0 or d = 0.0
select id from events where f = 0.1
select id from events where d in (0.0, 1.5)
select id from events where i in (1, 2, 7)
select id from events where i not in (1, 2, null)
select id from events where i in (1, null)
select id, i in (1, 2), i not in (1, 2), s in ('a', 'b'), p in (1, 2.5), l in (1, 10) from events
select id, i between 1 and 7, i not between 1 and 7, p between 0 and 2.5, dt between '2000-01-01' and '2026-01-01' from events
select id from events where ts >= '2026-01-01'
select id from events where ts >= '2026-01-01' and ts < '2026-01-02 00:00:00'
select id from events where '2026-01-01' <= ts
select id from events where tn >= '2026-01-01 00:00:00'
select id from events where ts between '2024-01-01' and '2026-12-31T23:59:59Z'
select id from events where dt = '2024-02-29'
select id from events where dt in ('2024-02-29', '1970-01-01')
select id from events where dt < ts
select id from events where dt >= timestamp'2026-01-01 00:00:00'
select id from events where ts > date'2026-01-01'
select id from events where tn > ts
select id from events where cast(ts as date) = date'2026-01-01'
select id from events where to_date(ts) between '2024-01-01' and '2026-01-01'
select id from events where date(ts) > '2025-12-31'
select id from events where ts >= now() - interval 1 day
select id from events where ts >= current_date()
select id from events where ts >= timestamp'2026-01-01 00:00:00' - interval 1 day
select id from events where s = 'a'
select id from events where s > 'a' and s < 'b'
select id from events where s >= 'ü'
select id from events where s like 'a%' and length(s) = 3
select id from events where c like 're%' or c is null
select id from events where bin > fx
select id from events where b
select id from events where not b
select id from events where b = true
select id from events where b is null
select id from events where (i = 1) = b
select id from events where i is not null and s is null
select id from events where true
select id from events where k > 1 and (c = 'red' or c = 'blue') and not (m < 0)
select id from events where st.a > 0
select id from events where st is null
select id from events where st.n.z is null and st is not null
select id from events where u = '00000000-0000-0000-0000-000000000000'
select id from events where u > '0' order by u
select id from events where p = 19.99
select id from events where q > 1.2345
select id from events where w < 0
select id from events where i = 1.0
select id from events where l = 9223372036854775807
select id from events where x = 2.675D
select id from events where k > (select min(k) from people)
select id from events where k = (select max(k) from people where k < 5)
select id from events where k in (select k from people)
select id from events where k not in (select k from people)
select id from events where k in (select k from people) and not k in (select 2) and (i > 0)
select id from events where k not in (select k from people where k is not null)
select id from events where m in (select k from people)
select id from events where exists (select 1 from people)
select id from events where exists (select 1 from nothing)
select id from events where not exists (select * from people where k = 77)
select id, (select max(name) from people), exists (select 1 from nothing) from events
select id, (select name from people where k = 77) from events
select id from nothing where i > 1
"""

AGGREGATES = """
select (ts - interval '0.000001' second * pmod(unix_micros(cast(ts as timestamp)), 86400000000)) as window_start, ((ts - interval '0.000001' second * pmod(unix_micros(cast(ts as timestamp)), 86400000000)) + interval '1' day) as window_end, count(*) as n from events where ts is not null and ts < '9999-01-01' group by (ts - interval '0.000001' second * pmod(unix_micros(cast(ts as timestamp)), 86400000000))
select c, cast(case when n > 0 then s end as decimal(22,2)) as s, cast(case when n > 0 then cast(cast(s as decimal(22,2)) / cast(n as decimal(20,0)) as decimal(16,6)) end as decimal(16,6)) as a from (select * from (select `v.c` as c, sum(`v.s`) as s, sum(`v.n`) as n from (select c as `v.c`, cast(p as decimal(22,2)) as `v.s`, if(p is null, 0L, 1L) as `v.n` from events) group by 1) where n > 0)
select c, case when n > 0 then cast(s as double) / n end as a, coalesce(n, 0) as n from (select c, sum(cast(k as decimal(30,0))) as s, sum(if(k is null, 0L, 1L)) as n from events group by 1)
select g, count(case when not case when part = 1 and r > 0 then v end is null then 1 end) as n, sum(case when part = 0 then r end) as r from (select c as g, k % 2 as part, k as v, count(*) as r from events group by 1, 2, 3) group by 1
select * from ((select c as g, cast(p as decimal(22,2)) as s from (select * from events where b) left anti join (select distinct * from (select c as `t.g` from events where not b)) on c is not distinct from `t.g`) union all (select c as g, sum(p) as s from events left semi join (select distinct c as h from events where k > 1) on c is not distinct from h group by 1))
select null as a, id as b, 'x' as c from events union all select id, null, s from events
select id, null as v from events union select id, d from events
select null as a from events union all select null from events
select count(*) from events
select count(*), count(1), count(i), count(s), count(st), count(arr) from events
select count(distinct i), count(distinct d), count(distinct f), count(distinct s), count(distinct p) from events
select count(distinct i, k), count(distinct d, c) from events
select sum(i), sum(k), sum(m), sum(x), sum(p), sum(q) from events
select sum(f), sum(d) from events where f < 1e30D and f > -1e30D and d < 100 and d > -100
select sum(distinct k), sum(distinct p), avg(distinct k) from events
select avg(i), avg(k), avg(m), avg(x), avg(p), avg(q), mean(k), avg(f) from events where f < 100 and f > -100
select avg(w), sum(w) from events where id < 2
select avg(l), avg(distinct l), avg(m), avg(distinct m) from events where l between -9007199254740992 and 9007199254740992
select min(i), max(i), min(s), max(s), min(d), max(d), min(f), max(f), min(p), max(q), min(dt), max(ts), min(b), max(b), min(bin), max(tn) from events
select stddev(x), std(x), stddev_samp(k), stddev_pop(x), variance(x), var_samp(p), var_pop(k) from events
select stddev(x), variance(x) from events where id = 1
select stddev(x), variance(x), stddev_pop(x), var_pop(x), avg(x), avg(p), sum(p), sum(k), count(x), min(x), max(s) from nothing
select stddev(d), var_pop(d) from events where d < 100 and d > -100
select count_if(b), bool_and(b), every(b), bool_or(b), count_if(i > 1) from events
select bool_and(b), bool_or(b), count_if(b) from nothing
select count(*) filter (where i > 1), sum(k) filter (where b), avg(p) filter (where c = 'red'), count(distinct k) filter (where k > 1) from events
select c, count(*) from events group by c
select c, b, count(*), sum(k), avg(x), min(ts), max(p) from events group by c, b
select c, count(*) as n from events group by 1
select upper(c), count(*) from events group by upper(c)
select upper(c) as uc, count(*) from events group by uc
select k % 2, count(*) from events group by k % 2
select k + 1, (k + 1) * 2, count(*) from events group by k + 1
select k, k + count(*), sum(m) / count(*), sum(k) * 2 + 1 from events group by k
select d, count(*) from events group by d
select f, count(*), max(id) from events group by f
select p, count(*), sum(p) / 2, avg(p), sum(p) / count(*) from events group by p
select c, sum(p) / count(*) as mean, sum(q) / sum(k) as r, max(p) - min(p) as spread from events group by c
select date_trunc('month', ts) as month, count(*) from events group by date_trunc('month', ts)
select date_trunc('day', ts) as day, count(*), sum(p) from events group by 1 order by 1
select cast(ts as date) as day, count(distinct k) from events group by cast(ts as date) order by day
select year(dt), month(dt), count(*) from events group by year(dt), month(dt)
select st.a, count(*) from events group by st.a
select st.a as a, sum(st.a) from events group by a
select u, count(*) from events group by u
select b from events group by b
select count(*) from events group by c
select c, count(*) from nothing group by c
select 1 from events group by c
select 'x', count(*), 1 + 1 from events
select c, count(*) as n from events group by c having count(*) > 5
select c, count(*) as n from events group by c having n > 5
select c, sum(k) from events group by c having c = 'red'
select c, count(*) as n, sum(k) as total from events group by c having n > 5 and total / n > 1 order by total * 2 - n, c
select c, sum(k) from events group by c having sum(k) > 10 and max(p) > 0
select max(k) from events having count(*) > 0
select max(k) from events having count(*) > 1000
select c, case when count(*) > 8 then 'many' else 'few' end, coalesce(sum(k), 0), round(avg(x), 2), round(avg(p), 2), round(sum(x) / count(*), 3) from events group by c
select c, round(avg(k), 1), count(*) / 2, count(*) % 3, sum(k) / 10 from events group by c
select coalesce(c, 'none') as c2, count(*) from events group by coalesce(c, 'none')
select c, k from events group by c, k
select e.c, count(*) from events e group by e.c
select c, sum(case when b then 1 else 0 end), sum(if(k > 2, p, 0)), avg(case when b then x end) from events group by c
select sum(k + m), max(k * 2), count(k + 1), min(s || c) from events
select sum(k), sum(k) + 1, sum(k) filter (where b) / sum(k) from events
select max(id) - min(id), sum(st.a) from events where st.a between -1000 and 1000
select c, count(*) as c from events group by c
select i % 10 as bucket, count(*) as n, sum(m) as total, avg(x) as mean from events where i > 0 group by bucket
"""

ORDERS = """
select id, i from events order by id
select id, i from events order by i, id
select id, i from events order by i desc, id desc
select id, i from events order by i nulls last, id
select id, i from events order by i desc nulls first, id
select id, s from events order by s, id
select id, d from events order by d, id
select id, d from events order by d desc, id
select id, f from events order by f, id
select id, b from events order by b, id
select id, p from events order by p desc, id
select id, ts from events order by ts, id limit 5
select id, dt from events order by dt desc, id limit 5 offset 3
select id from events order by m + k, id limit 10
select id from events order by st.a, id
select id, i as neg from events order by neg, id
select id, -k as k from events order by k, id
select id as a, k as b from events order by 2, 1
select id from events order by id limit 0
select id from events order by id offset 40
select c, count(*) from events group by c order by count(*) desc, c
select c, count(*) as n from events group by c order by n desc, c
select c, count(*) as n from events group by c order by 2 desc, 1
select c from events group by c order by sum(k) desc, c
select c, sum(p) as total from events group by c order by total desc, c limit 2
select k, count(*) from events group by k order by k
select k from events group by k order by k desc limit 3
select upper(c) as u, count(*) from events group by upper(c) order by upper(c)
select distinct c from events order by c
select distinct k, c from events order by k desc, c limit 4
select distinct k + 1 as n from events order by n
select id, bin from events order by bin, id
select id, u from events order by u, id
select e.id from events e order by e.k, e.id
select id, st.a from events where st.a > 1 order by id limit 5
select id, s, c from events where st.a in (1, 7) or st.n.z is null order by id desc limit 7
select id from events where st.n.z > 0 order by st.a, id limit 3
select c, max(k) - min(k) as spread from events group by c order by spread, c
"""

RELATIONS = """
select c, k, count(*) as n, sum(m) as s from events group by all
select c, b from events group by all
select c, k + 1 as j, 'x' as t, max(id) as m from events group by all order by m
select id, w, n from (select id, cast(pmod(id, 4) + 1 as bigint) as w from events) lateral view explode(sequence(cast(1 as bigint), w)) x as n
select c, d from (select * from (select c, d, cast(sum(k) as bigint) as w from events group by all) where w > 0) lateral view explode(sequence(cast(1 as bigint), w)) n as n where n < 3
select x.n, e.id from (select id, cast(if(id = 1, null, 2) as bigint) as w from events) e lateral view explode(sequence(1L, e.w)) x as n
select * except (i) from events
select e.* except (ARR, i, st), p.k as other from events e join people p on e.k = p.k
select id, moment from events lateral view explode(sequence(ts, ts + interval '2' hour, interval '50' minute)) x as moment
select x.moment as moment, e.tn from events e lateral view explode(sequence(tn, tn, interval '1' day)) x as moment
select max(moment) as moment, count(*) as n from events lateral view explode(sequence(ts - interval '0.000001' second * pmod(unix_micros(ts), 7200000000), ts, interval '1' hour)) h as moment group by c
select e.id, p.name, r.name as other from events e, people p join people r on e.k = r.k order by e.id, p.name, other
select e.id, p.k, r.k as other from events e, people p right join people r on p.k = r.k and r.k > 2 and e.id < 3
select * from (select id, i from events) t where i > 1
select t.id, t.n from (select id, i + 1 as n from events where i < 100) as t where t.n > 2
select count(*) from (select distinct c from events)
select c, n from (select c, count(*) as n from events group by c) where n > 5
select max(n) from (select c, count(*) as n from events group by c)
select id from (select id, i from events order by id limit 5) where i > 0
select `count(1)` from (select c, count(*) from events group by c)
with a as (select id, k from events where k > 1) select k, count(*) from a group by k
with a as (select k from events), b as (select k from a where k > 2) select count(*) from b
with a as (select k, count(*) as n from events group by k) select x.k, x.n, y.n from a x join a y on x.k = y.k
with events as (select 1 as one) select * from events
select * from (with a as (select 1 as x) select x + 1 from a)
select e.id, p.name from events e join people p on e.k = p.k
select e.id, p.name from events e inner join people p on e.k = p.k and p.score > 0
select e.id, p.name from events e left join people p on e.k = p.k
select e.id, p.name from events e left outer join people p on e.k = p.k and e.b
select e.id, p.name from events e right join people p on e.k = p.k
select e.id, p.name from events e full outer join people p on e.k = p.k
select e.id, p.name from events e left join people p on e.k = p.k where p.name is null
select e.id, p.name from events e left join people p on e.k = p.k where p.name = 'bob'
select e.id, p.name from events e cross join people p
select e.id, p.name from events e, people p where e.k = p.k
select e.id, p.name from events e join people p on e.k < p.k
select e.id from events e left semi join people p on e.k = p.k
select e.id from events e left anti join people p on e.k = p.k
select e.id from events e left anti join people p on e.k = p.k and p.name = 'ann'
select e.id, p.name from events e join people p on e.d = p.ratio
select e.id, p.name from events e join people p on e.x = p.score
select e.id, p.name from events e join people p on e.k <=> p.k
select e.id, p.name from events e join people p on e.dt = p.born
select e.id, p.name from events e join people p on e.ts = p.seen
select * from people a join people b on a.k = b.k
select a.*, b.name from people a left join people b on a.k = b.k + 1
select a.name, b.name, c.name from people a join people b on a.k = b.k left join people c on b.k = c.k - 1
select p.name, count(*), sum(e.p) from events e join people p on e.k = p.k group by p.name
select p.name, count(e.id) as n from people p left join events e on e.k = p.k group by p.name order by n desc, p.name
select name, total from people join (select k as kk, sum(p) as total from events group by k) on k = kk
select e.id, n.id from events e left join nothing n on e.k = n.k
select count(*) from events e join nothing n on e.k = n.k
select id from events where i = 1 union all select id from events where i = 1
select k from events union select k from people
select k from events union all select k from people
select id, p from events union all select id, cast(k as decimal(20,6)) from events
select p as x from events union select q from events
select p from events intersect select cast(p as decimal(30,2)) from events
select cast(p as decimal(22,2)) as s from events except all select sum(p) from events
select k from events intersect select k from people
select k from events except select k from people
select k from events except all select k from people
select k from events intersect all select k from people
select d from events union select ratio from people
select c, count(*) as n from events group by c union all select 'all', count(*) from events
select k from events union all select k from people order by k desc limit 5
(select k from events order by id limit 3) union all (select k from people)
select k from people union select k from events intersect select k from people
select k as a from people union select k as b from events order by a
select * from topic('events') where i = 1
select e.id from topic('events') e where e.i = 1
select events.id from topic('events') where events.i > 100
select id from topics.events where i = 7
"""

WINDOWS = """
select id, row_number() over (order by id) from events
select id, row_number() over (partition by c order by id desc) from events
select id, rank() over (order by k), dense_rank() over (order by k desc) from events
select id, rank() over (partition by c order by k nulls last) as r from events
select id, percent_rank() over (order by k), cume_dist() over (partition by c order by k) from events
select id, ntile(4) over (order by id) from events
select id, lag(i) over (order by id), lead(i) over (order by id), lag(i, 2) over (order by id), lead(k, 1, 0) over (order by id) from events
select * from (select id, st.a as a, row_number() over (partition by c order by id) as rn from events where st.a > 1) where rn = 1
select id, sum(k) over (partition by upper(c) order by id), count(*) over (partition by 1 / k) from events
select id, lag(s, 1, 'none') over (partition by c order by id) from events
select id, sum(k) over (partition by c), count(*) over (), count(k) over (partition by b), max(k) over (partition by c) from events
select id, sum(k) over (order by id), avg(k) over (order by id), min(p) over (partition by c order by id) from events
select id, sum(k) over (order by k) from events
select id, sum(k) over (partition by c order by id rows between 1 preceding and current row) from events
select id, sum(k) over (order by id rows between 2 preceding and 1 following) from events
select id, avg(x) over (order by id rows between unbounded preceding and current row) from events
select id, max(k) over (order by id rows between current row and unbounded following) from events
select id, sum(p) over (partition by c order by id), avg(p) over (partition by c) from events
select id, first_value(i) over (partition by c order by id), last_value(k) over (order by id) from events
select id, last_value(k) over (order by id rows between unbounded preceding and unbounded following) from events
select id, sum(k) over (partition by d), count(*) over (partition by f) from events
select c, sum(k), rank() over (order by sum(k) desc) from events group by c
select c, sum(k) as total, sum(sum(k)) over (order by c) from events group by c
select c, count(*) as n, count(*) / sum(count(*)) over () as share from events group by c
select * from (select id, c, row_number() over (partition by c order by id) as rn from events) where rn = 1
select id, k - lag(k) over (order by id) as step from events order by id
select id, stddev(x) over (partition by c) from events
select id, count(*) over (partition by c, b order by id) from events
select id, bool_or(b) over (partition by c), count_if(b) over (order by id) from events
"""

RAISING = """
select -lim from events
select abs(lim) from events
select i + 1 from events
select l * 2 from events
select i * i from events
select 1 / k from events union all select 1 / (k - 1) from events
select k % 0 from events
select k / 0 from events
select i div 0 from events
select 1.5 / (k - k) from events
select -i from events
select abs(i) from events
select cast(l as int) from events
select cast(d as int) from events
select cast(q as decimal(10, 2)) from events
select sum(l) from events where l > 1000000
select arr[0] from events
select arr[2] from events
select (select k from people) from events
select cast(p as decimal(5, 2)) from events
"""

UNPROVEN = """
select id from events lateral view explode(sequence(cast(2 as bigint), l)) x as n
select id from events lateral view outer explode(sequence(cast(1 as bigint), l)) x as n
select id from events lateral view explode(sequence(cast(1 as bigint), l, cast(2 as bigint))) x as n
select id from events lateral view posexplode(arr) x as n, m
select * from events group by all
select rand() from events
select uuid() from events
select regexp_replace(s, 'a', 'b') from events
select approx_count_distinct(i) from events
select explode(arr) from events
select first(i) from events
select collect_list(i) from events
select s rlike 'a' from events
select i + '1' from events
select i from events where i = '1'
select cast(s as int) from events
select cast(x as string) from events
select cast(ts as string) from events
select date_format(ts, 'yyyy') from events
select s like i from events
select s like 'a!%' escape '!' from events
select 'it''s'
select p % 2 from events
select i = k < i from events
select id || 1 + 2 from events
select st = st from events
select distinct st from events
select st from events order by st
select c, id from events group by c
select c, count(*) from events group by rollup(c)
select row_number() over (partition by c) from events
select e.id, (select max(k) from people p where p.k = e.k) from events e
select id from events e where exists (select 1 from people p where p.k = e.k)
select * from events join people using (k)
select * from events natural join people
select * from events tablesample (10 percent)
select k from events union all select l from events
select ln(x), exp(x), power(x, 2) from events
select ts - ts from events
select id from events limit 1 + 1
select * from events version as of 1
select /*+ broadcast(e) */ id from events e
select sum(distinct k) over (order by id) from events
select x from events order by row_number() over (order by id)
select transform(arr, v -> v + 1) from events
select current_user()
select i & 1 from events
select round(f, 1) from events
select * except (nope) from events
select * except (i, i) from events join people using (k)
select * except (st.a) from events
select id from events lateral view explode(sequence(ts, ts, interval '1' month)) x as moment
select id from events lateral view explode(sequence(dt, dt, interval '1' day)) x as moment
insert into events select * from events
drop table events
select 1; select 2
not sql at all
select sum(i) as k from events order by sum(k)
select k from events having k > 1
select id from events where null
select i is not null from events
select id, k in (select k from people) from events
select id from events where not (k in (select k from people) or b)
select distinct k + 1 from events order by k + 1
select i > 1.5 from events
select w + 0.5 from events
select s as ünquoted from events
select id from events where (b)
select id from events where (b, b)
select id from events |> limit 1
with c as (select rand() as r from events) select id from events
"""


def queries(text: str) -> list[str]:
    """One query per line."""
    return [line for line in text.strip().splitlines() if line]


RAISES = queries(RAISING)
LEFT_TO_SPARK = queries(UNPROVEN)
PROVEN = queries(PROJECTIONS + PREDICATES + AGGREGATES + ORDERS + RELATIONS + WINDOWS)

# Mostly not proven, with conditions that may or may not hold for the rows of the tables below.
NARROWED = queries("""
select id, explode(arr) as v from events where i > 0
select id, v from events lateral view explode(arr) x as v where v = 1 and id < 20
select id, v from events lateral view outer explode(arr) x as v where v is null and i < 8
select e.id, (select max(k) from people p where p.k = e.k and p.k > 2) from events e where e.k = 3
select e.id, (select count(*) from people p where e.i = 1) as n from events e
select id from events e where exists (select 1 from people p where p.k = e.k and e.c = 'red')
select id from events e where not exists (select 1 from people p where p.k = e.k and p.k = 2)
select id from events where k in (select k from people where k = 1) or id = 3
select id from events where not (k in (select k from people where k = 2) or b)
select id from events where k not in (select k from people where k = 2)
select id from events where (select max(k) from people where k < 3) = k
select id from events natural join people where k = 2
select id, k from events full join people using (k) where k = 2
select id, k from events left join people using (k) where k = 2
select id, k from events right join people using (k) where k = 2
select e.id, p.k from events e left join people p on e.k = p.k and e.i = 1 where p.k is null
select e.id, p.k from events e right join people p on e.k = p.k and e.i = 1 and p.k < 4
select e.id from events e left semi join people p on e.k = p.k and p.k = 2 where s rlike '.*'
select e.id from events e left anti join people p on e.k = p.k and p.k = 2 where s rlike '.*'
select e.id, q.k from events e, lateral (select p.k from people p where p.k = e.k and e.i > 0) q where q.k = 2
select c, count(*) from events group by rollup(c) having c = 'red'
select c, count(*) from events group by rollup(c) having c is null
select c, k, count(*) from events group by cube(c, k) having k = 1
select c, k, grouping(c) as g from events group by grouping sets ((c, k), (k)) having k = 1
select * from (select c, k, count(*) as n from events group by grouping sets ((c), (k))) where c is null
select c, first(i, true) is null as f from events group by c having c = 'red'
select k, sort_array(collect_list(id)) from events where c = 'red' group by all
select k, max_by(id, id) as m from events group by k having k < 3
select * from (select id, c, row_number() over (partition by c order by id) as n from events) where n = 1 and id > 10
select * from (select id, c, collect_list(id) over (partition by c order by id) as n from events) where c = 'red'
select * from (select id, c, collect_list(id) over (order by id) as n from events) where c = 'red'
select * from (select id, i, rand() < 2 as r from events) where i = 1
select id from events where rand() < 2 and i = 1
select * from (select id, i, uuid() is null as u from events order by id limit 5) where i = 1
select * from (select id, c from events order by id desc limit 7 offset 2) where c = 'red'
select id from events tablesample (100 percent) where i = 1
select id from events where s rlike 'a' and c = 'red' or i = 7
select id from events where not (s rlike 'a' and c = 'red')
select id from events where i = '1'
select id from events where k > 1.5 and s rlike '.*'
select id from events where c like 'r!%' escape '!' or c = 'red'
select * from (select id, i from events where s rlike '.*' union all select k, k from people) where i = 1
select * from (select k from events where s rlike '.*' except all select k from people where k = 3) where k < 4
select * from (select k from events where s rlike '.*' except select k from people) where k = 1
select * from (select k from events where s rlike '.*' intersect select k from people) where k = 1
select * from (select id, c from events) pivot (count(id) as n for c in ('red', 'green'))
select * from (select c, k, id from events) pivot (count(id) for c in ('red' as r, 'blue' as b)) where k = 2
select id, n from events unpivot (n for of in (i, k)) where n = 1
with e as (select *, s rlike 'a' as a from events where i > 0) select id from e where k = 2 union all select id from e where c = 'red'
with e as (select c, collect_set(k) as k from events group by c) select size(k) from e where c = 'red'
select id from events where case when i = 1 then s rlike '.*' else false end
select id from events where coalesce(i, 1) = 1 and nvl2(c, c, 'red') = 'red'
select id from events where if(i = 1, true, k = 2)
select id, i from events where i = 1 |> where id > 5
""")
