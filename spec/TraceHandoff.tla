---------------------------- MODULE TraceHandoff ----------------------------
(* Are the journals of real routers, or of simulated ones, a behaviour of the  *)
(* model? TraceData, which trace_test.go makes of the journals, has the life   *)
(* of some partitions as a sequence of events. Each event is a step of an      *)
(* action of Handoff.tla, or nothing is: TLC then reports a deadlock, and the  *)
(* journal is rejected. Ticks are microseconds by the clocks of the routers.   *)
(* Nodes are incarnations: one that is LOST comes back as another node.        *)
(* Key 0 stands for all keys that no record or gate names.                     *)
(*                                                                             *)
(* Journals do not show deliveries. A delivery of every key that is not        *)
(* withheld is taken to run from when the gate opens to when the data path     *)
(* says that it is over, however long its deadline has passed (ModeAbort is    *)
(* FALSE): Exclusive is no claim here.                                         *)
EXTENDS Handoff, TraceData
VARIABLES t,  \* which partition of TraceData
          l   \* its next event
traceVars == <<vars, t, l>>

E == Traces[t].events[l]
TraceCur(k) == Traces[t].cur[k]
TraceGen(k) == Traces[t].gen[k]
TraceSent == 0
TraceIncs == {1}
TracePerms == {}         \* TLC computes all of Handoff's at its start
TraceView == <<t,l>>   \* one state for each event: nothing is left to choose

TraceInit ==
  /\ t \in 1..Len(Traces) /\ l = 1
  /\ log = <<>> /\ fl = {}
  /\ pos = [n \in Node |-> 0] /\ up = [n \in Node |-> FALSE] /\ inc = [n \in Node |-> 1]
  /\ lease = [n \in Node |-> 0] /\ out = [n \in Node |-> <<>>] /\ nren = [n \in Node |-> 0]
  /\ heard = [n \in Node |-> [m \in Node |-> [i \in Incs |-> 0]]] /\ hconf = [n \in Node |-> {}]
  /\ dl = [n \in Node |-> Nobody] /\ note = [n \in Node |-> Nobody] /\ conf = [n \in Node |-> {}]
  /\ acq = [n \in Node |-> 0] /\ held = [n \in Node |-> {}]
  /\ proc = [n \in Node |-> Idle] /\ orph = [n \in Node |-> {}] /\ fast = [n \in Node |-> 0]

Near(x,y) == x <= y + 3 /\ y <= x + 3 \* instants are cut to microseconds
Step(n) == CASE
     E[1] = "age"   -> Age(IF n = "*" THEN Node ELSE {n}, E[3])
  \* the log: who wrote a table does not matter, who is in it does
  [] E[1] = "E"     -> /\ Own(Cur(Len(log))) # <<n,1>>
                       /\ log' = Append(log, [t |-> "E", on |-> n, oi |-> 1])
                       /\ UNCHANGED <<pos,up,inc,lease,out,fl,heard,dl,acq,held,proc,orph,nren,fast,conf,hconf,note>>
  [] E[1] = "G"     -> Genesis(n)
  [] E[1] = "land"  -> \E r \in fl : r.n = n /\ r.s = E[3] /\ Land(r)
  [] E[1] = "again" -> /\ log' = Append(log, log[E[3]])      \* a producer's retry has written a record twice
                       /\ UNCHANGED <<pos,up,inc,lease,out,fl,heard,dl,acq,held,proc,orph,nren,fast,conf,hconf,note>>
  \* what a router reads
  [] E[1] = "adopt" -> /\ ~up[n] /\ Adopt(n,E[3])
                       /\ UNCHANGED <<log,inc,lease,out,fl,acq,held,proc,orph,nren,fast,conf,hconf>>
  [] E[1] = "read"  -> ReadLate(n,E[4]) /\ pos'[n] = E[3]
  \* what it does: lease is what it has published, with whether a Pong may extend deliveries of closed tenures
  [] E[1] = "lease" -> /\ Near(lease[n],E[3])
                       /\ E[4] => Old(n) # 0 /\ Old(n) >= Gen(pos[n])
                       /\ UNCHANGED vars
  [] E[1] = "open"  -> Acquire(n) /\ held'[n] \subseteq E[3]
  [] E[1] = "hold"  -> IF held[n] \subseteq E[3] THEN acq[n] # 0 /\ UNCHANGED vars ELSE Unhold(n) /\ held'[n] \subseteq E[3]
  [] E[1] = "run"   -> /\ proc' = [proc EXCEPT ![n] = [k \in Key |-> IF k \in E[3] \/ @[k].ten # 0 THEN @[k] ELSE [ten |-> acq[n], d |-> lease[n]]]]
                       /\ UNCHANGED <<log,pos,up,inc,lease,out,fl,heard,dl,acq,held,orph,nren,fast,conf,hconf,note>>
  [] E[1] = "gate"  -> (E[3] => acq[n] # 0) /\ UNCHANGED vars    \* is it open after a table was read?
  [] E[1] = "rest"  -> /\ proc' = [proc EXCEPT ![n] = [k \in Key |-> IF @[k].ten = acq[n] \/ k \in E[3] THEN @[k] ELSE NoProc]]
                       /\ UNCHANGED <<log,pos,up,inc,lease,out,fl,heard,dl,acq,held,orph,nren,fast,conf,hconf,note>>
  [] E[1] = "beat"  -> /\ pos[n] = E[4] /\ nren[n] + 1 = E[3]
                       /\ E[6] => acq[n] # 0 /\ held[n] = {}
                       /\ SendBeat(n, IF E[5] THEN 1 ELSE 0, IF E[6] THEN acq[n] ELSE 0, E[7])
  \* a router may also end before it has adopted a table, and then it had nothing
  [] E[1] = "end"   -> IF up[n] THEN Crash(n) ELSE UNCHANGED vars

\* Where all routers read one clock, events of all are in their real order. The test counts the lines: the first event of
\* which there is none is not allowed.
TraceNext ==
  /\ l <= Len(Traces[t].events)
  /\ Step(E[2]) /\ l' = l + 1 /\ UNCHANGED t
  /\ OneClock => OneDispatcher'
  /\ PrintT(<<"event", t, l>>)
  /\ l = Len(Traces[t].events) /\ ShowLast => PrintT([lease |-> lease', acq |-> acq', held |-> held', proc |-> proc', pos |-> pos', dl |-> dl', conf |-> conf', note |-> note'])
TraceSpec == TraceInit /\ [][TraceNext]_traceVars
=============================================================================
