#!/bin/sh
# Measures which attack reads most of ResNet-18's clients, by many ways, in pieces of nine minutes:
#     sh tools/resnet_gpu.sh LINE [KEYHOLE]
# LINE is one of
#     batch        fresh weights, eval mode, 8 images
#     trained      weights that know 70% of their images, eval mode, 1 image
#     statistics   fresh weights, train mode, 1 image, buffers shared
# Each way is an audit of its own, whose result goes to results/resnet/LINE-WAY.json. The same
# command goes on where it was; ways that are done cost nothing. KEYHOLE is the command (default:
# keyhole). Keep results/ and runs/ between pieces. Where OUT names a folder, all results there are
# go into OUT/resnet.tar.gz as well.
# DEVICE, VICTIMS and ITERATIONS are for trials: DEVICE=cpu VICTIMS=1 ITERATIONS=2.
set -eu
line=${1:?"name a line: batch, trained or statistics"}
keyhole=${2:-keyhole}
ends=$(($(date +%s) + 480))
iterations=${ITERATIONS:-2000}
weights=runs/study-regimes/weights/resnet18-bn-70.safetensors

# One way per line: its name, and the attack.
ways_of_batches='
conv       conv-spear
conv-3000  conv-spear(iterations=3000,lr=0.01)
decode     decode
ig         ig(tv=1e-4)
head-1     head-ig(tv=1e-4)
head-10    head-ig(guidance=10,tv=1e-4)
head-100   head-ig(guidance=100,tv=1e-4)
head-slow  head-ig(guidance=10,tv=1e-4,lr=0.02)
head-tv3   head-ig(guidance=10,tv=1e-3)
head-tv2   head-ig(guidance=10,tv=1e-2)
head-tv2s  head-ig(guidance=10,tv=1e-2,lr=0.02)
head-tv1   head-ig(guidance=10,tv=1e-1,lr=0.02)
head-rand  head-ig(guidance=10,tv=1e-3,start="random")
head-part  head-ig(guidance=10,tv=1e-3,largest=0.1)
head-try4  head-ig(guidance=10,tv=1e-3,start="random",trials=4)
gifd       gifd(pixels=2000)
inversion  gradinversion(tv=1e-3)
consensus  gradinversion(tv=1e-3,trials=4,rounds=2,noise=0.2)
'
ways_of_trained='
conv       conv-spear
conv-3000  conv-spear(iterations=3000,lr=0.01)
decode     decode
ig         ig
ig-tv4     ig(tv=1e-4)
ig-tv3     ig(tv=1e-3)
ig-tv2     ig(tv=1e-2)
ig-try8    ig(tv=1e-3,trials=8)
ig-part    ig(tv=1e-3,largest=0.1)
head-1     head-ig(tv=1e-3)
head-10    head-ig(guidance=10,tv=1e-3)
head-slow  head-ig(guidance=1,tv=1e-3,lr=0.02)
head-rand  head-ig(guidance=1,tv=1e-3,start="random",trials=4)
gifd       gifd(pixels=2000)
inversion  gradinversion(tv=1e-3)
bn-2       gradinversion(tv=1e-3,statistics=1e-2)
consensus  gradinversion(tv=1e-3,trials=4,rounds=2,noise=0.2)
'
ways_of_statistics='
conv       conv-spear
conv-3000  conv-spear(iterations=3000,lr=0.01)
ig         ig(tv=1e-4,batch_statistics="ignored")
both       ig(tv=1e-4,batch_statistics="both")
both-2     ig(tv=1e-4,batch_statistics="both",statistics_weight=0.1)
both-1     ig(tv=1e-4,batch_statistics="both",statistics_weight=1)
prior-1    ig(tv=1e-4,batch_statistics="prior",statistics_weight=1)
anchored   ig(tv=1e-4,batch_statistics="anchored")
smooth     ig(tv=1e-3,batch_statistics="both",statistics_weight=0.1)
smoother   ig(tv=1e-2,batch_statistics="both",statistics_weight=0.1)
part       ig(tv=1e-3,batch_statistics="both",statistics_weight=0.1,largest=0.1)
head-1     head-ig(tv=1e-3,batch_statistics="both",statistics_weight=0.1)
head-s     head-ig(tv=1e-3,batch_statistics="both",statistics_weight=0.1,lr=0.02)
try8       ig(tv=1e-3,batch_statistics="both",statistics_weight=0.1,trials=8)
gifd       gifd(pixels=2000,batch_statistics="both",statistics_weight=0.1)
'

train() {
    # The study's first cell of these weights trains them.
    [ -f "$weights" ] || timeout -s INT -k 20 300 $keyhole study regimes \
        resnet18-bn-70-b1-step-malicious --device "${DEVICE:-cuda}" --victims 1 --iterations 1
}

# audit NAME ATTACK OPTIONS: one way, unless it is done or the time is over.
audit() {
    name=$line-$1 attack=$2
    shift 2
    file=results/resnet/$name.json left=$((ends - $(date +%s)))
    if [ -s "$file" ] || [ "$left" -lt 20 ]; then
        return 0
    fi
    echo "$name: $attack" >&2
    timeout -s INT -k 20 "$left" $keyhole audit --model resnet18 --data dia-cifar10 \
        --attack "$attack" --iterations "$iterations" --device "${DEVICE:-cuda}" \
        --out "runs/resnet/$name" --json "$@" > "$file.part" || { echo "$name: cut off" >&2; return 0; }
    mv "$file.part" "$file"
}

mkdir -p results/resnet runs/resnet
case $line in
batch) ways=$ways_of_batches
    set -- --batch-size 8 --victims "${VICTIMS:-4}" --client-mode eval ;;
trained) ways=$ways_of_trained
    train >&2
    set -- --weights "$weights" --victims "${VICTIMS:-32}" --client-mode eval ;;
statistics) ways=$ways_of_statistics
    set -- --victims "${VICTIMS:-32}" --lr 0.1 --client-mode train ;;
*) echo "line: name batch, trained or statistics, got $line" >&2; exit 2 ;;
esac
printf '%s\n' "$ways" | while read -r name attack; do
    if [ -n "$name" ]; then
        audit "$name" "$attack" "$@" < /dev/null
    fi
done
rm -f results/resnet/*.part
if [ -n "${OUT:-}" ]; then
    tar -czf "$OUT/resnet.tar.gz" results/resnet
fi
