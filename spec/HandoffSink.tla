----------------------------- MODULE HandoffSink -----------------------------
(* Handoff.tla with a sink: a database that keeps the greatest fence that it has *)
(* seen of the key, and refuses a write with a smaller one. Nothing is asked of   *)
(* applications here (A4): whoever was given a delivery may write at any time,     *)
(* also long after its deadline, after the death of its router, or twice.          *)
(* A fence is the pair of the tenure (its position in the log, the token) and the   *)
(* turn, which the owner counts up with each delivery. A process that is started    *)
(* again counts from the beginning.                                                  *)
EXTENDS Handoff
CONSTANTS MaxGiven,
  ModeTurn,      \* FALSE: the turn stays the same within a tenure
  ModeToken      \* FALSE: the sink compares turns alone
ASSUME Cardinality(Key) = 1

VARIABLES turn,  \* node -> deliveries that its process has given out
          given, \* the fences of all deliveries, in the order in which they began
          sink   \* which of them has written last, 0 for none
sinkVars == <<turn, given, sink>>

Fence(i) == IF i = 0 THEN [ten |-> 0, turn |-> 0] ELSE given[i]
Less(a,b) == IF ModeToken THEN a.ten < b.ten \/ (a.ten = b.ten /\ a.turn < b.turn) ELSE a.turn < b.turn
Accepts(i) == ~Less(Fence(i), Fence(sink))

Give(n,k) ==
  /\ Len(given) < MaxGiven
  /\ Dispatch(n,k)
  /\ turn' = [turn EXCEPT ![n] = @ + 1]
  /\ given' = Append(given, [ten |-> acq[n], turn |-> IF ModeTurn THEN turn[n] + 1 ELSE 1])
  /\ UNCHANGED sink

Write(i) ==
  /\ i # sink /\ Accepts(i)
  /\ sink' = i
  /\ UNCHANGED <<vars, turn, given>>

Die(n) == Crash(n) /\ turn' = [turn EXCEPT ![n] = 0] /\ UNCHANGED <<given, sink>>

Others == \/ Tick
          \/ \E n \in Node : SendRenew(n) \/ StaleRead(n) \/ Read(n) \/ Acquire(n) \/ Unhold(n)
                          \/ Finish(n) \/ FastClock(n) \/ Restart(n) \/ Genesis(n)
                          \/ \E m \in Node, i \in Incs : Propose(n,m,i)
          \/ \E r \in fl : Land(r)

SinkInit == Init /\ turn = [n \in Node |-> 0] /\ given = <<>> /\ sink = 0
SinkNext == \/ Others /\ UNCHANGED sinkVars
            \/ \E n \in Node : Die(n) \/ \E k \in Key : Give(n,k)
            \/ \E i \in 1..Len(given) : Write(i)
SinkSpec == SinkInit /\ [][SinkNext]_<<vars, sinkVars>>

\* I12: the sink refuses every write of a delivery that began before one whose write it accepted
SinkOrder == \A i \in 1..Len(given) : i < sink => ~Accepts(i)
\* and it refuses nobody else: the newest delivery can always write
SinkOpen == Len(given) > 0 => Accepts(Len(given))
\* must be VIOLATED: a stale write is tried after one by another tenure, and after one by the same
NoStaleByAnotherOwner == ~\E i \in 1..Len(given) : i < sink /\ given[i].ten < given[sink].ten
NoStaleByTheSameOwner == ~\E i \in 1..Len(given) : i < sink /\ given[i].ten = given[sink].ten
=============================================================================
