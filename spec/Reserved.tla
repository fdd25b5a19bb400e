------------------------------ MODULE Reserved ------------------------------
(* Handoff.tla with reservations of its key that outlive their owner (rule 9).  *)
(* A reservation begins as a live turn: a delivery like any other, whose holder  *)
(* goes on for as long as the lease of its owner. The owner writes a take into   *)
(* the log. Once it has applied that take, and the take counts, the reservation  *)
(* is covered: its turn is no delivery any more, and each answer that the owner   *)
(* gives under an open gate and a valid lease promises its holder TTL. When the  *)
(* owner is deposed the turn ends there at once, and the holder goes on. Every    *)
(* later owner withholds the key for WT from the opening of its gate on; in that  *)
(* time the holder may resume, by its id.                                        *)
(* The replicated state is one entry, for there is one key: the ids that may hold *)
(* it, and the record that says so. A take replaces it, a drop removes it, and     *)
(* both count iff their sender had applied the record of the entry that they meet: *)
(* like an Epoch they are a compare-and-set. Nothing else is asked of them, so a    *)
(* take of a deposed owner may count, and then costs waiting at most.               *)
(* A Genesis carries the ids of the takes that its author has read (the author     *)
(* has no state, so it may not know which of them counted). It has no effect if a   *)
(* take lies between what its author has read and itself.                           *)
(* Holders never give up by themselves here: they ask, and come back, whenever      *)
(* they like, also after the end of their last promise or after a release.          *)
EXTENDS Handoff
CONSTANTS Id,
  TTL,           \* what an answer promises, by the holder's clock. At least L, see ttl_below_lease in check.sh
  WT,            \* how long an owner keeps the key for a holder from which it hears nothing
  RT,            \* an answer needs an own take that was sent less than RT ago. Counts in runs with Genesis only
  AN,            \* the author of a Genesis finds no takes that are older
  MaxTake, MaxDrop,
  ModeApplied,   \* FALSE: covered from the sending of the take on
  ModeOpening,   \* FALSE: the key is withheld for WT from the reading of the take on, not from the opening of the gate
  ModeTakeover,  \* FALSE: a new owner withholds nothing
  ModeSeen,      \* FALSE: takes and drops count by another rule: iff their sender owns the partition and had read of that
  ModeStart,     \* FALSE: by that rule, a drop counts also if its sender had not read of its present tenure
  ModeThisTurn,  \* FALSE: an entry that was there before a turn began covers it, too
  ModeList,      \* FALSE: a Genesis carries no ids
  ModeBase,      \* FALSE: a Genesis counts although takes lie between what its author has read and itself
  ModeRetake,    \* FALSE: an answer needs no recent take
  ModeResumeId,  \* FALSE: whoever says that it resumes may do so
  ModeOneId,     \* FALSE: of several ids in an entry each may resume
  ModeGate,      \* FALSE: answers go on after the gate was closed, while there is a lease
  ModeAsk,       \* FALSE: a holder counts from when it gets an answer, not from when it asked
  ModeSnap       \* FALSE: a node that adopts the state gets no entry
ASSUME Cardinality(Key) = 1

VARIABLES ent,   \* the entry after each record
  vis,   \* whose live turn the delivery on a node is, 0: nobody's, it is an event
  cov,   \* the id whose covered turn runs at a node, 0: none
  wait,  \* for how long the node still keeps the key for the entry's holder, if its gate is open
  mine,  \* the own take that counts and that a node has read during the live turn that it is for, 0: none
  hold,  \* the rest of the last promise to each id
  age,   \* for each take how much is left of AN since it was sent. Runs with Genesis only
  orv,   \* tenure and id of the live reservations among the deliveries that survive the death of their router
  since, ans, from   \* for the planted bugs: what is left of WT since a take was read; answers under way; where the entry was lost
rv == <<ent,vis,cov,wait,mine,hold,age,orv,since,ans,from>>
K == CHOOSE k \in Key : TRUE
NoEntry == [ids |-> {}, at |-> 0]
Aged == MaxGen > 0
NoAge == [x \in {} |-> 0]

Entry(n) == LET e == ent[pos[n]] IN IF e.at > from[n] THEN e ELSE NoEntry
Resumable(n) == LET s == Entry(n).ids IN IF ~ModeOneId \/ Cardinality(s) = 1 THEN s ELSE {}
Serves(n) == up[n] /\ acq[n] # 0 /\ lease[n] > 0
LiveId(n) == IF vis[n] # 0 /\ proc[n][K].ten = acq[n] THEN vis[n] ELSE 0
MyTake(n,j) == log[j].t = "T" /\ <<log[j].n,log[j].i>> = <<n,inc[n]>> /\ j > acq[n]

\* whether record r counts, which meets entry e in the tenure that began at c
Counts(r,e,c) == IF ModeSeen THEN r.ea >= e.at
                 ELSE <<r.n,r.i>> = Own(c) /\ (r.cu = c \/ (r.t = "D" /\ ~ModeStart))
After(r,k,e,c) == CASE r.t = "G" -> [ids |-> r.res, at |-> IF r.res = {} THEN 0 ELSE k]
                    [] r.t = "T" /\ Counts(r,e,c) -> [ids |-> {r.id}, at |-> k]
                    [] r.t = "D" /\ Counts(r,e,c) -> NoEntry
                    [] OTHER -> e
Appended(r) == ent' = Append(ent, After(r, Len(log)+1, ent[Len(log)], Cur(Len(log))))

\* the delivery of a node is over: it is no reservation's any more
VisFollows == /\ vis'  = [n \in Node |-> IF proc'[n][K].ten = 0 THEN 0 ELSE vis[n]]
              /\ mine' = [n \in Node |-> IF proc'[n][K].ten = 0 THEN 0 ELSE mine[n]]
OrvFollows == orv' = [n \in Node |-> {x \in orv[n] : \E o \in orph'[n] : o.ten = x[1]}]

(* Takes and drops are inert for the rules of Handoff: they release and acquire  *)
(* nothing.                                                                      *)
Inert(n,type,id,ea) == [t |-> type, n |-> n, i |-> inc[n], s |-> 0, cu |-> Cur(pos[n]), acq |-> 0, dr |-> 1, bz |-> Key, id |-> id, ea |-> ea]
Number(type) == Cardinality({j \in 1..Len(log) : log[j].t = type}) + Cardinality({r \in fl : r.t = type})
Send(r) == fl' = fl \cup {r} /\ UNCHANGED <<log,pos,up,inc,lease,out,heard,dl,acq,held,proc,orph,nren,fast,conf,hconf,note>>

SendTake(n) ==
  LET id == IF cov[n] # 0 THEN cov[n] ELSE LiveId(n)
      r  == [Inert(n,"T",id,Entry(n).at) EXCEPT !.s = Number("T") + 1] IN
  /\ up[n] /\ acq[n] # 0 /\ id # 0 /\ Number("T") < MaxTake
  /\ Send(r)
  /\ age' = IF Aged THEN (r.s :> AN) @@ age ELSE age
  /\ UNCHANGED <<ent,vis,cov,wait,mine,hold,orv,since,ans,from>>

\* The owner says that the entry's holder is over: it has released, or was silent for WT.
SendDrop(n) ==
  LET e == Entry(n) IN
  /\ up[n] /\ acq[n] # 0 /\ e.at # 0 /\ wait[n] = 0 /\ LiveId(n) \notin e.ids /\ Number("D") < MaxDrop
  /\ Send(Inert(n,"D",0,e.at))
  /\ UNCHANGED <<ent,vis,cov,wait,mine,hold,age,orv,since,ans,from>>

RLand(r) == Land(r) /\ Appended(r) /\ UNCHANGED <<vis,cov,wait,mine,hold,age,orv,since,ans,from>>

RPropose(n,m,i) == Propose(n,m,i) /\ Appended([t |-> "E"]) /\ UNCHANGED <<vis,cov,wait,mine,hold,age,orv,since,ans,from>>

\* The takes that the author of a Genesis finds in the first b records, and what an earlier Genesis listed.
Found(b) == {log[j].id : j \in {x \in 1..b : log[x].t = "T" /\ age[log[x].s] > 0}} \cup UNION {log[j].res : j \in {x \in 1..b : log[x].t = "G"}}
RGenesis(m) ==
  /\ Count("G") < MaxGen /\ Len(log) < MaxLog
  /\ \E b \in 1..Len(log) :
       /\ ModeBase => \A j \in (b+1)..Len(log) : log[j].t # "T"
       \* all of them, or those alone of which it is known that they counted
       /\ \E ids \in IF ModeList THEN {Found(b), Found(b) \cap ent[b].ids} ELSE {{}} :
            LET r == [t |-> "G", on |-> m, oi |-> inc[m], res |-> ids] IN
            log' = Append(log, r) /\ Appended(r)
  /\ UNCHANGED <<pos,up,inc,lease,out,fl,heard,dl,acq,held,proc,orph,nren,fast,conf,hconf,note>>
  /\ UNCHANGED <<vis,cov,wait,mine,hold,age,orv,since,ans,from>>

\* A record that begins a tenure closes the gate: a covered turn is over here at once.
RRead(n) ==
  LET j == pos[n]+1
      e == pos[n] < Len(log) /\ IsE(j) IN
  /\ Read(n)
  /\ cov'  = IF e /\ ModeGate THEN [cov EXCEPT ![n] = 0] ELSE cov
  /\ wait' = IF e THEN [wait EXCEPT ![n] = 0] ELSE wait
  /\ mine' = IF log[j].t = "T" /\ ent[j].at = j /\ MyTake(n,j) /\ log[j].id = LiveId(n) THEN [mine EXCEPT ![n] = j] ELSE IF e THEN [mine EXCEPT ![n] = 0] ELSE mine
  /\ since' = IF ~ModeOpening /\ log[j].t = "T" /\ ent[j].at = j THEN [since EXCEPT ![n] = WT] ELSE since
  /\ UNCHANGED <<ent,vis,hold,age,orv,ans,from>>

RAcquire(n) ==
  /\ Acquire(n)
  /\ wait' = [wait EXCEPT ![n] = IF Entry(n).ids = {} \/ ~ModeTakeover THEN 0 ELSE IF ModeOpening THEN WT ELSE since[n]]
  /\ UNCHANGED <<ent,vis,cov,mine,hold,age,orv,since,ans,from>>

\* An event, or (id # 0) a reservation, begins.
Begin(n,id) ==
  /\ wait[n] = 0 /\ Dispatch(n,K)
  /\ vis' = [vis EXCEPT ![n] = id]
  /\ UNCHANGED <<ent,cov,wait,mine,hold,age,orv,since,ans,from>>

\* A holder comes back. Its turn is live, and covered when its new owner has its own take.
Resume(n,id) ==
  /\ wait[n] > 0 /\ cov[n] = 0 /\ (ModeResumeId => id \in Resumable(n))
  /\ Dispatch(n,K)
  /\ vis' = [vis EXCEPT ![n] = id]
  /\ UNCHANGED <<ent,cov,wait,mine,hold,age,orv,since,ans,from>>

\* The turn is no delivery any more. Until the first answer its holder has what a live one has, or what a former owner has promised, and the
\* key is kept for no longer. TTL may be less than the rest of the live permission in a planted bug alone (ttl_below_lease).
Cover(n) ==
  LET id == LiveId(n)
      e  == Entry(n)
      w  == Max(wait[n], proc[n][K].d + WT - TTL) IN
  /\ up[n] /\ acq[n] # 0 /\ id # 0 /\ w > 0
  /\ \/ e.ids = {id} /\ (IF ModeThisTurn THEN e.at = mine[n] ELSE MyTake(n,e.at))
     \/ ~ModeApplied /\ \E r \in fl : r.t = "T" /\ r.n = n /\ r.i = inc[n] /\ r.id = id /\ r.cu = acq[n]
  /\ hold' = [hold EXCEPT ![id] = Max(@, proc[n][K].d)]
  /\ proc' = [proc EXCEPT ![n] = Idle]
  /\ cov' = [cov EXCEPT ![n] = id] /\ wait' = [wait EXCEPT ![n] = w] /\ vis' = [vis EXCEPT ![n] = 0] /\ mine' = [mine EXCEPT ![n] = 0]
  /\ UNCHANGED <<log,pos,up,inc,lease,out,fl,heard,dl,acq,held,orph,nren,fast,conf,hconf,note>>
  /\ UNCHANGED <<ent,age,orv,since,ans,from>>

\* An answer shortens neither what its holder has nor for how long the owner keeps the key.
Recent(n) == LET j == Entry(n).at IN IF Aged /\ ModeRetake THEN j # 0 /\ MyTake(n,j) /\ age[log[j].s] > AN - RT ELSE TRUE
Answer(n) ==
  LET id == cov[n] IN
  /\ id # 0 /\ up[n] /\ lease[n] > 0 /\ (ModeGate => acq[n] # 0) /\ Recent(n)
  /\ hold' = IF ModeAsk THEN [hold EXCEPT ![id] = Max(@, TTL)] ELSE hold
  /\ ans'  = IF ModeAsk THEN ans ELSE ans \cup {id}
  /\ wait' = [wait EXCEPT ![n] = Max(@, WT)]
  /\ UNCHANGED <<vars,ent,vis,cov,mine,age,orv,since,from>>
GetAnswer(id) ==
  /\ id \in ans /\ ans' = ans \ {id} /\ hold' = [hold EXCEPT ![id] = Max(@, TTL)]
  /\ UNCHANGED <<vars,ent,vis,cov,wait,mine,age,orv,since,from>>

\* The owner hears nothing of the holder: the turn is over when the last permission that it has given is, and the key still waits for what a former owner may have
\* promised. Here it may be over at any time.
EndTurn(n) ==
  /\ up[n] /\ cov[n] # 0
  /\ cov' = [cov EXCEPT ![n] = 0]
  /\ UNCHANGED <<vars,ent,vis,wait,mine,hold,age,orv,since,ans,from>>

\* The holder has stopped and says so: the key is free at once.
Release(n) ==
  LET id == IF cov[n] # 0 THEN cov[n] ELSE LiveId(n) IN
  /\ id # 0 /\ up[n]
  /\ hold' = [hold EXCEPT ![id] = 0] /\ cov' = [cov EXCEPT ![n] = 0] /\ wait' = [wait EXCEPT ![n] = 0]
  /\ vis' = [vis EXCEPT ![n] = 0] /\ mine' = [mine EXCEPT ![n] = 0] /\ proc' = [proc EXCEPT ![n] = Idle]
  /\ UNCHANGED <<log,pos,up,inc,lease,out,fl,heard,dl,acq,held,orph,nren,fast,conf,hconf,note>>
  /\ UNCHANGED <<ent,age,orv,since,ans,from>>

RFinish(n) == Finish(n) /\ VisFollows /\ OrvFollows /\ UNCHANGED <<ent,cov,wait,hold,age,since,ans,from>>

RTick ==
  /\ Age(Node,1)
  /\ hold' = [id \in Id |-> Sub(hold[id],1)] /\ wait' = [n \in Node |-> Sub(wait[n],1)]
  /\ cov' = [n \in Node |-> IF wait[n] <= 1 THEN 0 ELSE cov[n]]
  /\ since' = [n \in Node |-> Sub(since[n],1)] /\ age' = [x \in DOMAIN age |-> Sub(age[x],1)]
  /\ VisFollows /\ OrvFollows
  /\ UNCHANGED <<ent,ans,from>>

RFastClock(n) ==
  /\ FastClock(n)
  /\ wait' = [wait EXCEPT ![n] = Sub(@,1)] /\ cov' = [cov EXCEPT ![n] = IF wait[n] <= 1 THEN 0 ELSE @]
  /\ UNCHANGED <<ent,vis,mine,hold,age,orv,since,ans,from>>

RCrash(n) ==
  /\ Crash(n)
  /\ orv'  = IF vis[n] # 0 THEN [orv EXCEPT ![n] = @ \cup {<<proc[n][K].ten,vis[n]>>}] ELSE orv
  /\ cov'  = [cov EXCEPT ![n] = 0] /\ wait' = [wait EXCEPT ![n] = 0]
  /\ VisFollows
  /\ UNCHANGED <<ent,hold,age,since,ans,from>>

RRestart(n) ==
  /\ Restart(n)
  /\ from' = IF ModeSnap THEN from ELSE [from EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<ent,vis,cov,wait,mine,hold,age,orv,since,ans>>

RInit == /\ Init /\ ent = <<NoEntry>>
         /\ vis = [n \in Node |-> 0] /\ cov = [n \in Node |-> 0] /\ wait = [n \in Node |-> 0] /\ mine = [n \in Node |-> 0]
         /\ hold = [id \in Id |-> 0] /\ age = NoAge /\ orv = [n \in Node |-> {}]
         /\ since = [n \in Node |-> 0] /\ ans = {} /\ from = [n \in Node |-> 0]
RNext == \/ RTick
         \/ \E n \in Node : \/ SendRenew(n) /\ UNCHANGED rv
                            \/ RRead(n) \/ RAcquire(n) \/ RFinish(n) \/ RFastClock(n) \/ RCrash(n) \/ RRestart(n) \/ RGenesis(n)
                            \/ SendTake(n) \/ SendDrop(n) \/ Cover(n) \/ Answer(n) \/ EndTurn(n) \/ Release(n)
                            \/ \E m \in Node, i \in Incs : RPropose(n,m,i)
                            \/ \E id \in Id : Resume(n,id)
                            \/ \E id \in Id \cup {0} : Begin(n,id)
         \/ \E r \in fl : RLand(r)
         \/ \E id \in Id : GetAnswer(id)
RSpec == RInit /\ [][RNext]_<<vars,rv>>

\* Whoever may be at work on the key: handlers of events, holders of live reservations, holders of promises
LiveOrphan(n,o) == {x \in orv[n] : x[1] = o.ten}
Turns == {<<"event",n,proc[n][K].ten>> : n \in {x \in Node : proc[x][K].ten # 0 /\ vis[x] = 0}}
    \cup UNION {{<<"event",n,o.ten>> : o \in {x \in orph[n] : LiveOrphan(n,x) = {}}} : n \in Node}
    \cup {<<"id",vis[n],0>> : n \in {x \in Node : vis[x] # 0}}
    \cup UNION {{<<"id",x[2],0>> : x \in UNION {LiveOrphan(n,o) : o \in orph[n]}} : n \in Node}
    \cup {<<"id",id,0>> : id \in {x \in Id : hold[x] > 0}}
\* I13: never two of them
OneTurn == Cardinality(Turns) <= 1
\* I14: while a promise runs, no node could begin a turn of anybody else
PromiseKept == \A id \in Id, n \in Node : hold[id] > 0 /\ Serves(n) =>
                 wait[n] > 0 /\ cov[n] \in {0,id} /\ (cov[n] = 0 => Resumable(n) \subseteq {id})
\* I15: a running promise is in the log, whatever is on its way to it
InLog == \A id \in Id : hold[id] > 0 => id \in ent[Len(log)].ids
RPerms == Permutations(Node) \cup Permutations(Id)

(* Guides, for runs that must be VIOLATED alone.                                 *)
GuideGiven == Shape(<<"E","R","T","E","R","R">>, <<TRUE,TRUE,TRUE,FALSE,TRUE,FALSE>>)           \* E0(A) b(A) t(A) q(B) b1(A) c(B)
GuideLater == Shape(<<"E","R","T","E","R">>, <<TRUE,TRUE,TRUE,FALSE,FALSE>>)                    \* E0(A) b(A) t(A) q(B) c(B)
GuideAgain == Shape(<<"E","R","T","E","R","T">>, <<TRUE,TRUE,TRUE,FALSE,FALSE,FALSE>>)          \* E0(A) b(A) t(A) q(B) c(B) t1(B)
GuideTwo   == Shape(<<"E","R","T","T","G","R">>, <<TRUE,TRUE,TRUE,TRUE,FALSE,FALSE>>)           \* E0(A) b(A) t(A) t1(A) G(B) c(B)
GuideOld   == Shape(<<"E","R","T","R","R","G","R">>, <<TRUE,TRUE,TRUE,TRUE,TRUE,FALSE,FALSE>>)  \* E0(A) b(A) t(A) b1(A) b2(A) G(B) c(B)
\* E0(A) b(A) t(A) q(B) c(B) t1(B) q1(A) d(A) b1(A)
GuideReturn == Shape(<<"E","R","T","E","R","T","E","D","R">>, <<TRUE,TRUE,TRUE,FALSE,FALSE,FALSE,TRUE,TRUE,TRUE>>)

\* must be VIOLATED
NoResume == ~\E n \in Node : vis[n] # 0 /\ wait[n] > 0 /\ hold[vis[n]] > 0 /\ log[Entry(n).at].t = "T" /\ log[Entry(n).at].n # n
NoLateTake == ~\E k \in 1..Len(log) : log[k].t = "T" /\ log[k].cu < Cur(k) /\ \E n \in Node : pos[n] >= k /\ Serves(n) /\ acq[n] < k
NoReturnedDrop == ~\E k \in 1..Len(log), n \in Node : log[k].t = "D" /\ log[k].cu < Cur(k) /\ Own(Cur(k)) = <<log[k].n,log[k].i>>
                    /\ ent[k].ids # {} /\ pos[n] >= k /\ Serves(n) /\ \E id \in Id : hold[id] > 0
\* a covered turn is handed over, and nobody waits for it: the promise is as fresh as the opening of the next gate
NoHandOver == ~\E n \in Node : Serves(n) /\ cov[n] = 0 /\ wait[n] = WT /\ \E id \in Id : hold[id] = TTL
NoHoldOverGenesis == ~\E n \in Node : Serves(n) /\ Gen(pos[n]) # 0 /\ wait[n] > 0 /\ \E id \in Id : hold[id] > 0
NoCoverAgain == ~\E n \in Node : cov[n] # 0 /\ hold[cov[n]] > 0 /\ Own(1)[1] # n /\ \E j \in 1..Entry(n).at : log[j].t = "T" /\ log[j].n # n /\ log[j].id = cov[n]
NoFreeAgain == ~\E n \in Node : Serves(n) /\ wait[n] = 0 /\ Entry(n).ids = {} /\ \E j \in 1..pos[n] : log[j].t = "D" /\ ent[j-1].ids # {} /\ log[j].n = n /\ Own(1)[1] # n
=============================================================================
