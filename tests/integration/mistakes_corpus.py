"""Queries with names that mean nothing, or two things, and queries that only look like them; one per line."""

from __future__ import annotations

CERTAIN = """
select 1, 'a b', nope from events
select e.id from events e, people r join nothing n on k = 1
select e.id from events e, people r join nothing n on e.k = nope
select id, given + 1 from (select id, 1 as given from events) where given2 > 1
select id from events e, people r join nothing n on r.k = n.k
with c as (select nope from events) select id from events
with c as (select * from unknown) select id from events
with c as (with d as (select nope from events) select 1 as one) select id from events
select e.k as k, k + 1 from events e join people r on e.k = r.k
select e.k as k, count(*) from events e join people r on e.k = r.k group by k
select id from events group by (nope)
select first_value(nope) over (order by id) from events
select count(nope) from events having count(*) > 1
select id from events intersect select k from people order by k
select * from events e full outer join people r on e.k = r.k where k = 1
select id as x1, x1 as x2 from events where x2 = 1
select id from events where k in (1, 2, (select nope from people))
select id from events where id in (select id from nothing where name = 'x')
select try_cast(nope as int) from events
select nope from events
select nope, id from events
select id from events where nope > 1
select upper(nope) from events
select regexp_replace(nope, 'a', 'b') from events
select id from events order by nope
select id from events e order by r.k
select id as n from events order by m2
select count(*) from events group by nope
select k, count(*) from events group by k having nope > 1
select k, count(*) as n from events group by k order by nn
select e.nope from events e
select events.id from events e
select z.id from events e
select events from events
select e from events e
select e.nope.field from events e
select `nope` from events
select NOPE from Events
select 1 from unknown
select * from events join unknown on true
select * from (select * from unknown)
select * from topics.unknown
with c as (select * from unknown) select * from c
with c as (select id from events) select nope from c
with c as (select id from events) select k from c
with c (a, b) as (select id, k from events) select id from c
with c as (select id from events), d as (select id as other from c) select id from d
select * from (select id as a from events) x where id > 1
select x.id from (select id as a from events) x
select e.id from (select e.id from events e)
select a from (select st.a from events) where st.a = 1
select k from events e join people r on e.k = r.k
select e.id from events e join people r on k = k
select e.id from events e join people r on e.k = r.k where k > 1
select count(*) from events e join people r on e.k = r.k group by k
select e.id from events e, events e2 where id = 1
select e.id from events e join events e on true
select name from events e left semi join people r on e.k = r.k
select r.name from events e left anti join people r on e.k = r.k
select id from events where k in (select nope from people)
select id from events where k in (select k from people where nope = 1)
select id from events e where exists (select 1 from people r where r.k = e.nope)
select id from events e where exists (select 1 from people r where r.k = z.k)
select (select max(nope) from people) from events
select id from events union all select nope from events
select id from events union select k from people order by name
select sum(nope) over (partition by c) from events
select sum(id) over (partition by nope) from events
select row_number() over (order by nope) from events
select count(*) filter (where nope) from events
select case when nope then 1 else 2 end from events
select case id when nope then 1 end from events
select cast(nope as int) from events
select nope::int from events
select id between 1 and nope from events
select id in (1, nope) from events
select nope.field from events
select nope['a'] from events
select arr[0] + nope from events
select nope is null from events
select s like nope from events
select s ilike nope from events
select s rlike nope from events
select if(nope, 1, 2) from events
select if(b, nope, 2) from events
select date_add(dt, nope) from events
select coalesce(id, nope) from events
select count(distinct nope) from events
select named_struct('a', nope) from events
select id from events e join people r on e.k = r.nope
select id from events e join people r on e.k = r2.k join people r2 on true
select id from events e left join people r on e.k = r.k where r.nope = 1
select e.*, r.nope from events e join people r on e.k = r.k
select * from events e join people r using (k) where nope = 1
select id + 1 as a from events where a > 1
select id as a from events e join people r on a = r.k
select nope from events limit 5
from events select nope
select distinct nope from events
select t.nope from (select id from events union all select k from people) t
select 1 as one where nope
select nope
select id, (select nope) from events
select max(nope) from events group by c
select * from (select upper(s) as u from events) where s = 'a'
select -nope from events
select not nope from events
select id from events order by upper(nope)
select id || nope from events
with e as (select k from people) select id from e
select id from events e where e.k > (select avg(k) from people where people.k = ee.k)
select /*+ broadcast(e) */ nope from events e
"""
"""Spark does not find or not tell apart a name, and neither do we."""

FINE = """
select e.id from events e, people r join nothing n on e.k = n.k
select 'one' from events order by one
select 1, true, null, id as a, a + 1 from events
select 1 as one, one + 1 as two from events
select 'a' as one, upper(one) from events
select null as one from events order by one
select nope from (select b from events) where (nope)
select id as a, a + 1 as b from events
select id as a, a + 1 as b, b + 1 as c2 from events
select sum(id) as total, total + 1 from events
select st.a from events
select st.n.z from events
select events.st.n.z from events
select e.st.a from events e
select (st).a from events
select st.* from events
select e.* from events e
select lines[0].sku from events
select lines.sku from events
select mp.a from events
select mp['a'] from events
select E.ID, Id, `iD` from EVENTS e
select `e`.`id` from `events` `e`
select id as `weird name` from events order by `weird name`
select upper(s) from events order by `upper(s)`
select count(*) from events order by `count(1)`
select k + 1 as g, count(*) from events group by g
select c as g, count(*) as n from events group by g having n > 1 order by n, g
select c, count(*) as n from events group by c having n > 1 and max(id) > 1
select id as a from events order by a
select id as a from events order by k
select id from events order by upper(s)
select id as a from events group by a
select e.k as k, r.name from events e join people r on e.k = r.k order by k
select e.k from events e join people r on e.k = r.k having k > 1
select k from events e join people r using (k)
select e.k, r.k, k from events e join people r using (k)
select k from events natural join people
select * from events e join people r using (k) where name = 'a'
with c as (select id from events) select id from c
with c as (select id as a from events) select c.a from c
with c (a, b) as (select id, k from events) select a, c.b from c
with events as (select k as only_here from people) select only_here from events
with c as (select * from events) select id, st.a from c
with c as (select id from events), d as (select id from c) select id from d
select x.id from (with c as (select id from events) select * from c) x
select id from events e where exists (select 1 from people r where r.k = e.k)
select id from events where exists (select 1 from people r where r.k = id)
select id, (select max(k) from people r where r.k = e.k) from events e
select id from events e where k in (select k from people where people.k = e.id)
select id from events e where exists (select 1 from (select k from people) r where r.k = e.k)
select transform(arr, v -> v + 1) from events
select transform(arr, v -> v + id) from events
select filter(arr, (v, n) -> v > n) from events
select aggregate(arr, 0, (acc, v) -> acc + v) from events
select exists(arr, v -> v > 1) from events
select explode(arr) from events
select explode(arr) as v from events
select id, col from (select id, explode(arr) from events)
select id, v from events lateral view explode(arr) t as v
select id, t.v from events lateral view explode(arr) t as v where v > 1
select id, pos, col from events lateral view posexplode(arr) t
select id, v from events e, lateral (select e.k as v)
select id, v from events join lateral (select events.k + 1 as v) on true
select id from range(10)
select a from values (1, 2) as t(a, b)
select t.b from (values (1, 2)) as t(a, b)
select col1 from (values (1, 2))
select a from (select id, k from events) as t(a, b)
select t.a from people as t(a, b2, c2, d2, e2, f2)
select abc from (select 'abc')
select id from (select cast(id as string) from events)
select id from (select (id) from events)
select k from (select int(k) from events)
select a from (select st.a from events)
select z from (select st.n.z from events)
select timestampadd(HOUR, 1, ts) from events
select timestampdiff(MONTH, ts, ts) from events
select dateadd(DAY, 1, dt) from events
select date_diff(DAY, ts, ts) from events
select extract(year from ts) from events
select date_part('year', ts) from events
select current_date, current_timestamp from events
select current_date + 1 from events
select interval 1 day + ts from events
select date '2020-01-01', timestamp '2020-01-01 00:00:00' from events
select position('a' in s) from events
select c, count(*) from events group by all
select id from events order by all
select c, grouping(c), count(*) from events group by rollup(c)
select c, k, count(*) from events group by grouping sets ((c), (k))
select c, sum(id) over w from events window w as (partition by c)
select sum(id) over (partition by c order by k) as r, r + 1 from events
select * except (id) from events
select id from (select * except (k) from events)
select * from events pivot (count(*) for c in ('red', 'blue'))
select red from (select c, id from events) pivot (count(*) for c in ('red', 'blue'))
select id from events tablesample (10 rows)
select id from events union all select k from people order by id
select id as x from events union select k from people order by x
(select id from events) order by k
(select id from events) union all (select k from people) order by id
select e.id from events e left semi join people r on e.k = r.k and r.name = 'a'
select id from events e left anti join people r on e.k = r.k and name = 'a'
select e.id from events e, people r join nothing n on r.k = n.k
select e.id from events e, people r left join nothing n on n.k = r.k and name = 'x'
select id from (events join people on events.k = people.k)
select id from (events) where id = 1
select struct(id, k as other).other from events
select named_struct('x', id).x from events
select map('a', id)['a'] from events
select if(b, id, k) from events
select first(id) from events
select max_by(id, k) from events
select collect_list(id) from events
select count(*) from events
select count(e.id) from events e
select 1
select 1 as one
select id from events where id = (select max(id) from events)
select distinct c from events order by c
select from_json(s, 'a int').a from events
from events select id
select id from events having id > 1
select `id` from events
select inline(lines) from events
select sku from (select inline(lines) from events)
select stack(2, 1, 2) from events
select col0 from (select stack(2, 1, 2) from events)
select a.id from events a join events b on a.id = b.id
select id from (select id, id from events)
select max(id) as m2, min(id) as m3 from events having m2 > m3
select c as g, row_number() over (partition by c order by id) as r from events order by g, r
"""
"""Nothing is wrong with the names; Spark may object to something else."""

UNTOLD = """
select id as a, count(a) from events group by id
select id from events sort by nope
select max(id) over nope from events
select sum(k) as s2 from people order by name
select id from events limit nope
select nope.* from events
select c, count(*) from events group by rollup(nope)
select mp[nope] from events
select id from events where (nope)
select distinct c from events order by id
select a from (select cast(st.a as string) from events)
select st.nope from events
select lines[0].nope from events
select x.* from events e
select transform(arr, v -> v + nope) from events
select id from events lateral view explode(arr) t as v where nope = 1
select id from events, range(3) where nope = 1
select catalog.schema.column from events
select extract(year from nope) from events
select id from events |> where nope = 1
"""
"""Spark refuses them; we are not certain and leave them to it."""


def queries(text: str) -> list[str]:
    """One query per line."""
    return [line for line in text.strip().splitlines() if line]
