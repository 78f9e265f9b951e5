#!/usr/bin/env bash
# On a machine with a GPU: run.sh PAYLOAD OUT CHECK... where PAYLOAD is what shared/gpu/build_payload.sh makes, with
# fork.tar.xz beside it (what `apply --in-place` changes in the payload's site, see ci/README.md).
# CHECK: uva, ops, replay, memory, peak, numbers (e2e and host), e2e, host, sampled, pair, serve, eager, graphs, fused,
# ranks, wide, rate. Each variant is a process of its own; results of a check are compared at its end, and all that was
# written is packed into OUT/results.tar.gz after each check. All but the last five and uva end when KUNLUN_DEVICE_SECONDS (570) have passed.
# ranks wants two GPUs. KUNLUN_DEVICE_BACKEND: what ops and replay compare (torch).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
payload=$1 packed=$2 out=$HOME/results backend=${KUNLUN_DEVICE_BACKEND:-torch}
shift 2
rm -rf "$out" && mkdir -p "$out" || exit 1
bash "$payload/drv/setup.sh" "$payload" || exit 1
site=$HOME/pay
if [ ! -d "$site/fork" ]; then
  cp -al "$site/site" "$site/fork" && tar xJf "$payload/fork.tar.xz" --unlink-first -C "$site/fork" || exit 1
fi
python3 "$here/models.py" "$HOME/m" || exit 1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_HOST_IP=127.0.0.1 \
  GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false \
  VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_CACHE_ROOT=$HOME/cache/vllm \
  TRITON_CACHE_DIR=$HOME/cache/triton TORCHINDUCTOR_CACHE_DIR=$HOME/cache/inductor

engine() { # NAME SITE ENV... -- FLAG...
  local name=$1 tree=$2 began=$SECONDS
  shift 2
  local vars=()
  while [ "$1" != -- ]; do vars+=("$1"); shift; done
  shift
  env "${vars[@]}" PYTHONPATH="$site/$tree:$site/deps" python3 "$here/engine.py" --models "$HOME/m" \
    --out "$out/$name.json" "$@" > "$out/$name.log" 2>&1 || { echo "FAILED $name"; tail -n 25 "$out/$name.log"; }
  echo "$name took $((SECONDS - began)) s"
}

in_time() { timeout -k 5 $((${KUNLUN_DEVICE_SECONDS:-570} - SECONDS)) "$@"; }

for check in "$@"; do
  began=$SECONDS
  case $check in
    ops|replay)
      PYTHONPATH="$site/fork:$site/deps" in_time python3 "$here/launchers.py" "$check" --processes 14 \
        --backend "$backend" --out "$out/$check.json" 2> "$out/$check.log" || tail -n 5 "$out/$check.log" ;;
    uva) PYTHONPATH="$site/fork:$site/deps" python3 "$here/uva.py" 2>&1 | grep -v WARN ;;
    memory|numbers|e2e|host)
      in_time python3 "$here/benches.py" "$check" --pay "$site" --models "$HOME/m" --out "$out/$check.json" ;;
    sampled) # with temperature, views of host memory hidden from the fork
      in_time python3 "$here/benches.py" e2e --pay "$site" --models "$HOME/m" --out "$out/sampled.json" --temperature 0.8 \
        --only 'upstream V2,fork fused' ;;
    pair) # whether `auto` should be fused
      in_time python3 "$here/benches.py" e2e --pay "$site" --models "$HOME/m" --out "$out/pair.json" --rounds 5 --views \
        --only 'upstream V2,fork fused' ;;
    peak)
      for variant in upstream torch fused; do
        tree=fork hide=--hide-views; [ "$variant" = upstream ] && tree=site hide=
        for more in "" --no-drafts; do
          echo "$variant $more"
          requests=1024; [ -n "$more" ] && requests=64
          KUNLUN_KERNELS=$variant PYTHONPATH="$site/$tree:$site/deps" in_time python3 "$here/peak.py" --models "$HOME/m" \
            --requests $requests $hide $more --out "$out/peak-$variant$more.json" 2> "$out/peak-$variant$more.log" |
            grep MiB || tail -n 25 "$out/peak-$variant$more.log"
        done
      done ;;
    eager)
      engine eager-upstream site -- 
      engine eager-torch fork KUNLUN_KERNELS=torch -- --forbid-syncs
      engine eager-torch-noview fork KUNLUN_KERNELS=torch -- --forbid-syncs --hide-views
      engine eager-auto-noview fork -- --hide-views
      python3 "$here/compare.py" "$out"/eager-{upstream,torch,torch-noview,auto-noview}.json ;;
    graphs)
      engine graphs-upstream site -- --graphs
      engine graphs-torch fork KUNLUN_KERNELS=torch -- --graphs --forbid-syncs
      engine graphs-torch-noview fork KUNLUN_KERNELS=torch -- --graphs --forbid-syncs --hide-views
      engine graphs-auto-noview fork -- --graphs --hide-views
      python3 "$here/compare.py" "$out"/graphs-{upstream,torch,torch-noview,auto-noview}.json ;;
    fused)
      engine graphs-upstream site -- --graphs
      engine graphs-again site -- --graphs
      engine graphs-fused fork KUNLUN_KERNELS=fused -- --graphs --forbid-syncs
      engine graphs-fused-noview fork KUNLUN_KERNELS=fused -- --graphs --forbid-syncs --hide-views
      python3 "$here/compare.py" "$out"/graphs-{upstream,again,fused,fused-noview}.json ;;
    serve)
      for variant in torch fused; do
        KUNLUN_KERNELS=$variant PYTHONPATH="$site/fork:$site/deps" in_time python3 "$here/serve.py" --models "$HOME/m" \
          --out "$out/serve-$variant.json" --hide-views 2> "$out/serve-$variant.log" || tail -n 30 "$out/serve-$variant.log"
      done ;;
    ranks) # on two GPUs
      for variant in upstream torch fused; do
        tree=fork; [ "$variant" = upstream ] && tree=site
        KUNLUN_KERNELS=$variant PYTHONPATH="$site/$tree:$site/deps" in_time python3 "$here/ranks.py" --models "$HOME/m" \
          --out "$out/ranks-$variant.json" 2> "$out/ranks-$variant.log" | grep plans || tail -n 25 "$out/ranks-$variant.log"
      done
      python3 - "$out"/ranks-{upstream,torch,fused}.json <<'END'
import json, sys
said = [json.load(open(name))["tokens"] for name in sys.argv[1:]]
print("ranks: tokens of all variants", "equal" if all(one == said[0] for one in said) else "DIFFER")
END
      ;;
    wide)
      engine wide-upstream site -- --wide
      engine wide-torch fork KUNLUN_KERNELS=torch -- --wide
      engine wide-torch-noview fork KUNLUN_KERNELS=torch -- --wide --hide-views
      python3 "$here/compare.py" "$out"/wide-{upstream,torch,torch-noview}.json ;;
    rate)
      for round in 1 2; do
        engine rate-upstream-$round site -- --graphs --rate
        engine rate-torch-$round fork KUNLUN_KERNELS=torch -- --graphs --rate
        engine rate-torch-noview-$round fork KUNLUN_KERNELS=torch -- --graphs --rate --hide-views
        engine rate-auto-$round fork -- --graphs --rate
      done
      python3 "$here/compare.py" "$out"/rate-{upstream,torch,torch-noview,auto}-{1,2}.json ;;
  esac
  echo "check $check took $((SECONDS - began)) s"
  tar -C "$out" -czf "$packed/results.tar.gz" .
done
