#!/usr/bin/env bash
# Model-checks Handoff.tla, and the modules that extend it, with TLC: the protocol must hold, and each planted bug must be found.
#
#   spec/check.sh [quick|short|full|NAME…]
#
# quick: a few minutes on 2 cores. short: under a minute. full: quick and the larger bounds. NAME…: only these runs.
# A run given GUIDE=… searches one shape of log only; that is allowed for "violated" runs and refused for "holds" runs.
#
# Environment: TLC_JAR (see tools/tlc.sh), TLC_WORKERS (default: as many as cores), TLC_MEM (of the JVM, default 4g).

set -uo pipefail
cd "$(dirname "$0")"
jar=$(../tools/tlc.sh) || exit 2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cp ./*.tla "$work"; cd "$work"
modes="ModeWait ModeConf ModeAll ModeAp ModeInc ModeSendTime ModeOwnRead ModeSelf ModeBoot ModeTenureExt ModeForce ModeAdopt ModeAnyStart ModeGenStop ModeWithhold ModeAbort"
bounds="L W WAny MaxOut Exact MaxEpoch MaxRenew MaxInc MaxLog MaxFast MaxGen MaxSent"
sink_modes="ModeTurn ModeToken" # of HandoffSink alone, which has the bound MaxGiven too
reserved_modes="ModeApplied ModeOpening ModeTakeover ModeSeen ModeStart ModeThisTurn ModeList ModeBase ModeRetake ModeResumeId ModeOneId ModeGate ModeAsk ModeSnap" # of Reserved alone
reserved_bounds="TTL WT RT AN MaxTake MaxDrop"
short=" sink covered_at_send drop_out_of_order same_token drift no_wait release_unaware no_self_drain any_start drain_race reach_fast reach_regenesis "
only=" ${*:-quick} "; failed=0; ran=0; started=$SECONDS

# run NAME EXPECT MODULE INVARIANTS KEY=VALUE…   EXPECT is "holds" or "violated"
run() {
  local name=$1 expect=$2 module=$3 invariants=$4; shift 4
  case "$only" in
    *" quick "* | *" full "* | *" $name "*) ;;
    *" short "*) case "$short" in *" $name "*) ;; *) return ;; esac ;;
    *) return ;;
  esac
  ran=$((ran+1))
  declare -A v=([NODES]="n1,n2" [KEYS]="k1" [L]=1 [W]=1 [WAny]= [MaxOut]=1 [Exact]=TRUE [MaxEpoch]=3 [MaxRenew]=1 [MaxInc]=1 [MaxLog]=5 [MaxFast]=0 [MaxGen]=0 [MaxSent]=99 [MaxGiven]=3 [IDS]="" [TTL]=2 [WT]= [RT]=1 [AN]= [MaxTake]=1 [MaxDrop]=1 [GUIDE]="")
  local kv k n; for k in $modes $sink_modes $reserved_modes; do v[$k]=TRUE; done
  for kv in "$@"; do v[${kv%%=*}]=${kv#*=}; done
  v[WAny]=${v[WAny]:-${v[W]}}
  v[WT]=${v[WT]:-${v[TTL]}}
  v[AN]=${v[AN]:-$((v[RT]+v[TTL]-1))} # the least that must hold
  [ -z "${v[GUIDE]}" ] || [ "$expect" = violated ] || { echo "FAIL $name: a run that must hold has no guide"; failed=$((failed+1)); return; }
  local constants="$bounds $modes" spec=Spec symmetry=Perms
  case $module in
    HandoffSink) constants="$constants MaxGiven $sink_modes"; spec=SinkSpec ;;
    Reserved) constants="$constants $reserved_bounds $reserved_modes"; spec=RSpec symmetry=RPerms; v[IDS]=${v[IDS]:-i1} ;;
  esac
  {
    printf 'SPECIFICATION %s\nINVARIANTS %s\nSYMMETRY %s\nCHECK_DEADLOCK FALSE\n' "$spec" "$invariants" "$symmetry"
    [ -z "${v[GUIDE]}" ] || echo "CONSTRAINT ${v[GUIDE]}"
    echo CONSTANTS
    for n in ${v[NODES]//,/ } ${v[KEYS]//,/ } ${v[IDS]//,/ }; do echo "  $n = $n"; done
    echo "  Node = {${v[NODES]}}"
    echo "  Key = {${v[KEYS]}}"
    [ -z "${v[IDS]}" ] || echo "  Id = {${v[IDS]}}"
    for k in $constants; do echo "  $k = ${v[$k]}"; done
  } > "$name.cfg"
  local t=$SECONDS
  # TLC copies the modules of its jar to the directory for temporary files, and deletes them at its end: two in one directory delete each other's.
  java -XX:+UseParallelGC "-Xmx${TLC_MEM:-4g}" "-Djava.io.tmpdir=$work" -cp "$jar" tlc2.TLC -workers "${TLC_WORKERS:-auto}" -nowarning -metadir "$work/states" -config "$name.cfg" "$module.tla" > "$name.out" 2>&1
  rm -rf "$work/states"
  local got=error
  grep -q 'No error has been found' "$name.out" && got=holds
  grep -q 'is violated' "$name.out" && got=violated
  local states; states=$(grep -oE '[0-9,]+ distinct states found' "$name.out" | tail -1)
  local verdict=ok; [ "$got" = "$expect" ] || { verdict=FAIL; failed=$((failed+1)); tail -5 "$name.out" >&2; }
  printf '%-4s %-24s expected %-9s got %-9s %5ss  %s\n' "$verdict" "$name" "$expect" "$got" "$((SECONDS-t))" "${states% found}"
}
I="Exclusive OneDispatcher"
S="SinkOrder SinkOpen"
R="OneTurn PromiseKept InLog OneDispatcher"
# --- the protocol holds
run small            holds    Handoff "$I" MaxLog=4 MaxRenew=2
run inexact          holds    Handoff "$I" MaxLog=4 MaxRenew=2 Exact=FALSE
run drift            holds    Handoff "$I" MaxFast=1 W=2 MaxEpoch=2
run fine_time        holds    Handoff "$I" L=2 W=2 MaxEpoch=2 MaxRenew=2
run genesis          holds    HandoffGenesis "$I" MaxGen=1 MaxEpoch=1 MaxRenew=2 MaxLog=4 L=2 W=2
run sink             holds    HandoffSink "$I $S" MaxEpoch=2 MaxLog=4
run reserved         holds    Reserved "$R" MaxEpoch=2
run reserved_genesis holds    Reserved "$R" MaxGen=1 MaxEpoch=1 MaxTake=2
# --- every planted bug is found
run no_wait          violated Handoff "$I" ModeWait=FALSE
run drain_race       violated Handoff "$I" L=2 W=2 MaxEpoch=2 MaxRenew=2 ModeConf=FALSE GUIDE=GuideDrain
run prev_only        violated Handoff "$I" NODES=n1,n2,n3 ModeAll=FALSE GUIDE=GuideChain
run release_unaware  violated Handoff "$I" MaxEpoch=2 MaxRenew=2 ModeAp=FALSE GUIDE=GuideLate
run same_name        violated Handoff "$I" MaxEpoch=1 MaxLog=3 MaxRenew=2 MaxInc=2 ModeInc=FALSE
run ack_time         violated Handoff "$I" ModeSendTime=FALSE
run stale_read       violated Handoff "$I" MaxEpoch=2 MaxLog=4 MaxRenew=2 ModeOwnRead=FALSE
run no_self_drain    violated Handoff "$I" MaxLog=6 ModeSelf=FALSE
run suspend_clock    violated Handoff "$I" ModeBoot=FALSE
run drift_no_margin  violated Handoff "$I" MaxFast=1 W=1
run pong_per_stream  violated Handoff "$I" L=2 W=2 MaxEpoch=2 MaxRenew=2 ModeTenureExt=FALSE GUIDE=GuideLate
run forced_release   violated Handoff "$I" L=2 W=2 MaxEpoch=2 MaxRenew=2 ModeForce=FALSE GUIDE=GuideLate
run adopt_no_wait    violated Handoff "$I" MaxEpoch=2 MaxLog=4 MaxInc=2 MaxRenew=2 ModeAdopt=FALSE
run any_start        violated HandoffGenesis "$I" L=2 W=2 MaxGen=1 MaxEpoch=1 MaxRenew=2 ModeAnyStart=FALSE GUIDE=GuideGen
run drain_genesis    violated HandoffGenesis "$I" L=2 W=2 MaxGen=1 MaxEpoch=1 MaxRenew=2 ModeGenStop=FALSE GUIDE=GuideGen
run nothing_withheld violated Handoff "$I" KEYS=k1,k2 MaxEpoch=2 MaxRenew=2 ModeWithhold=FALSE GUIDE=GuideLate
run app_ignores_deadline violated Handoff "$I" ModeAbort=FALSE
run same_token       violated HandoffSink "$S" MaxEpoch=1 MaxLog=2 ModeTurn=FALSE
run turn_only        violated HandoffSink "$S" MaxEpoch=2 MaxLog=4 ModeToken=FALSE
run sink_no_wait     violated HandoffSink "$S" MaxEpoch=2 MaxLog=4 ModeWait=FALSE
run covered_at_send  violated Reserved "$R" MaxEpoch=2 ModeApplied=FALSE
run expiry_from_take violated Reserved "$R" L=2 W=2 MaxEpoch=2 MaxRenew=2 MaxLog=6 ModeOpening=FALSE GUIDE=GuideGiven
run dropped_at_takeover violated Reserved "$R" MaxEpoch=2 ModeTakeover=FALSE
run take_out_of_order violated Reserved "$R" IDS=i1,i2 MaxEpoch=1 MaxTake=2 ModeSeen=FALSE
run drop_out_of_order violated Reserved "$R" MaxEpoch=1 MaxTake=2 MaxLog=5 ModeSeen=FALSE
run drop_without_start violated Reserved "$R" MaxEpoch=3 MaxTake=2 MaxLog=8 ModeSeen=FALSE ModeStart=FALSE GUIDE=GuideReturn
run covered_by_older_take violated Reserved "$R" MaxEpoch=1 MaxTake=2 MaxLog=5 IDS=i1,i2 ModeThisTurn=FALSE
run genesis_forgets_reserved violated Reserved "$R" MaxGen=1 MaxEpoch=1 ModeList=FALSE
run base_skipped     violated Reserved "$R" MaxGen=1 MaxEpoch=1 ModeBase=FALSE
run take_too_old     violated Reserved "$R" MaxGen=1 MaxEpoch=1 MaxRenew=3 MaxLog=7 ModeRetake=FALSE GUIDE=GuideOld
run resume_any_id    violated Reserved "$R" IDS=i1,i2 MaxEpoch=2 ModeResumeId=FALSE
run resume_one_of_two violated Reserved "$R" IDS=i1,i2 MaxGen=1 MaxEpoch=1 MaxTake=2 RT=2 MaxLog=6 ModeOneId=FALSE GUIDE=GuideTwo
run renewed_after_revoke violated Reserved "$R" L=2 W=2 MaxEpoch=2 MaxRenew=2 MaxLog=6 ModeGate=FALSE GUIDE=GuideGiven
run valid_from_answer violated Reserved "$R" MaxEpoch=1 ModeAsk=FALSE
run snap_forgets_reserved violated Reserved "$R" MaxInc=2 MaxSent=2 MaxDrop=0 MaxEpoch=2 ModeSnap=FALSE GUIDE=GuideLater
run ttl_below_lease  violated Reserved "$R" L=2 W=2 TTL=1 MaxEpoch=2 MaxRenew=2 MaxLog=6 GUIDE=GuideGiven # a hand-over without a wait: only the next owner counts W(ttl)
run cover_no_margin  violated Reserved "$R" W=2 TTL=1 WT=1 MaxFast=1 MaxEpoch=2
# --- the protocol makes progress
run reach_silence    violated Vacuity NoTakeoverBySilence MaxEpoch=2 MaxRenew=2
run reach_release    violated Vacuity NoTakeoverByRelease MaxEpoch=2 MaxRenew=2
run reach_fast       violated Vacuity NoReleaseWithoutOwnBeat L=2 W=2 MaxEpoch=2 MaxRenew=2 GUIDE=GuideFast
run reach_return     violated Vacuity NoReturn MaxRenew=2
run reach_restart    violated Vacuity NoRestartAcquires MaxInc=2 MaxRenew=2 MaxLog=4 MaxEpoch=2
run reach_withheld   violated Vacuity NoOpenWithheld KEYS=k1,k2 MaxEpoch=2 MaxRenew=2 GUIDE=GuideLate
run reach_stale      violated HandoffSink NoStaleByAnotherOwner MaxEpoch=2 MaxLog=4
run reach_stale_same violated HandoffSink NoStaleByTheSameOwner MaxEpoch=1 MaxLog=2
run reach_crossed    violated Vacuity NeverCrossed MaxEpoch=4 MaxRenew=2 MaxLog=8 L=2 W=2 GUIDE=GuideBit
run reach_genesis    violated HandoffGenesis NoAcquireAfterGenesis MaxGen=1 MaxEpoch=1 MaxRenew=2 MaxLog=4
run reach_regenesis  violated HandoffGenesis NoReacquireAfterGenesis MaxGen=1 MaxEpoch=1 MaxRenew=2 MaxLog=4
run reach_resume     violated Reserved NoResume MaxEpoch=2
run reach_cover_again violated Reserved NoCoverAgain MaxEpoch=2 MaxTake=2 MaxLog=6 GUIDE=GuideAgain
run reach_hand_over  violated Reserved NoHandOver MaxEpoch=2 MaxRenew=2 MaxLog=6 GUIDE=GuideGiven
run reach_late_take  violated Reserved NoLateTake MaxEpoch=2 MaxLog=6
run reach_late_drop  violated Reserved NoReturnedDrop MaxEpoch=3 MaxRenew=2 MaxTake=2 MaxLog=9 GUIDE=GuideReturn
run reach_dropped    violated Reserved NoFreeAgain MaxEpoch=2 MaxLog=6
run reach_over_genesis violated Reserved NoHoldOverGenesis MaxGen=1 MaxEpoch=1
case "$only" in *" quick "* | *" short "*) ;; *)
  run sink_restart     holds    HandoffSink "$I $S" MaxRenew=2 MaxInc=2 MaxLog=4 MaxEpoch=2 MaxSent=2
  run sink_genesis     holds    HandoffSink "$I $S" MaxGen=1 MaxEpoch=1 MaxLog=4
  run keys             holds    Handoff "$I" KEYS=k1,k2 MaxEpoch=2 MaxRenew=2
  run keys_genesis   holds    HandoffGenesis "$I" KEYS=k1,k2 MaxGen=1 MaxEpoch=1 MaxRenew=2 MaxLog=4
  run keys_restart   holds    Handoff "$I" KEYS=k1,k2 MaxRenew=2 MaxInc=2 MaxLog=4 MaxEpoch=2 MaxSent=2
  run two_on_way     holds    Handoff "$I" MaxOut=2 MaxLog=4 MaxEpoch=2 MaxRenew=2 L=2 W=2
  run two_unconfirmed violated Handoff "$I" MaxOut=2 L=2 W=2 MaxEpoch=2 MaxRenew=2 ModeConf=FALSE GUIDE=GuideDrain
  run any_longer     holds    HandoffGenesis "$I" MaxGen=1 MaxEpoch=1 MaxRenew=2 MaxLog=4 L=1 W=1 WAny=2
  run small5         holds    Handoff "$I" MaxRenew=2
  run genesis5       holds    HandoffGenesis "$I" MaxGen=1 MaxEpoch=1 MaxRenew=2 L=2 W=2
  run genesis_epoch  holds    HandoffGenesis "$I" MaxGen=1 MaxEpoch=2 MaxRenew=2 MaxLog=5
  run genesis_twice  holds    HandoffGenesis "$I" MaxGen=2 MaxEpoch=1 MaxRenew=2 MaxLog=5
  run restart        holds    Handoff "$I" MaxRenew=2 MaxInc=2 MaxLog=4 MaxEpoch=2 MaxSent=2
  run fine_restart   holds    Handoff "$I" L=2 W=2 MaxRenew=1 MaxInc=2 MaxLog=4 MaxEpoch=2
  run chain3         holds    Handoff "$I" NODES=n1,n2,n3
  run reserved_ids   holds    Reserved "$R" IDS=i1,i2 MaxEpoch=2 MaxTake=2
  run reserved6      holds    Reserved "$R" MaxEpoch=2 MaxRenew=2 MaxSent=3 MaxLog=6
  run reserved_take6 holds    Reserved "$R" IDS=i1,i2 MaxEpoch=2 MaxTake=2 MaxLog=6
  run reserved_genesis6 holds Reserved "$R" MaxGen=1 MaxEpoch=1 MaxTake=2 MaxLog=6
  run reserved_genesis_epoch holds Reserved "$R" MaxGen=1 MaxEpoch=2 MaxDrop=0 MaxLog=6
  run reserved_restart holds  Reserved "$R" MaxInc=2 MaxSent=2 MaxEpoch=2
  run reserved_drift holds    Reserved "$R" W=2 TTL=1 WT=2 MaxFast=1 MaxEpoch=2
  run reserved_fine  holds    Reserved "$R" L=2 W=2 MaxEpoch=2
  run reserved_return holds   Reserved "$R" TTL=1 MaxEpoch=3 MaxTake=2 MaxLog=7
  run reserved_three holds    Reserved "$R" NODES=n1,n2,n3 MaxEpoch=3 MaxSent=2 MaxDrop=0
  run epochs4        holds    Handoff "$I" MaxEpoch=4 MaxRenew=2 MaxLog=6 ;;
esac
[ "$ran" -gt 0 ] || { echo "no run has such a name: $*" >&2; exit 2; }
echo "$failed of $ran failed, $((SECONDS-started)) s"; [ "$failed" = 0 ]
