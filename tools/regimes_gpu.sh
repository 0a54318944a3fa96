#!/bin/sh
# Measures what is left of the map of regimes on a GPU, in pieces that end within nine minutes:
#     sh tools/regimes_gpu.sh PIECE [KEYHOLE]
# PIECE is 1 to 9; a piece that was cut off continues where it was, and one that is done costs
# nothing. KEYHOLE is the command (default: keyhole). Results go to results/regimes, weights and
# unfinished audits to runs/study-regimes: keep both folders between pieces. Where OUT names a
# folder, all results there are go into OUT/regimes.tar.gz as well.
# DEVICE, VICTIMS and ITERATIONS are for trials: DEVICE=cpu VICTIMS=1 ITERATIONS=2.
set -eu
piece=${1:?"name a piece: 1 to 9"}
keyhole=${2:-keyhole}

measure() {
    # SIGINT lets an audit write its checkpoint; 124 is timeout's own exit code.
    timeout -s INT -k 20 510 $keyhole study regimes "$@" --device "${DEVICE:-cuda}" \
        --victims "${VICTIMS:-4}" --iterations "${ITERATIONS:-1000}" --within 450 || [ $? -eq 124 ]
}

case $piece in
1) measure 'quickstart-*' 'mlp-*-b[148]-*' ;;
2) measure 'lenet-*' 'mlp-*-b32-*' ;;
3) measure 'vit-small-fresh-*' ;;
4) measure 'vit-small-70-*' 'vit-small-90-*' ;;
5) measure 'resnet18-gn-fresh-*' 'resnet18-bn-fresh-*' ;;
6) measure 'resnet18-gn-70-*' 'resnet18-gn-90-*' ;;
7) measure 'resnet18-bn-70-*' 'resnet18-bn-90-*' ;;
8) measure 'deit-small-fresh-b[14]-step*' 'deit-small-fresh-*-malicious' ;;
9) measure 'deit-small-*' ;;
*) echo "piece: name 1 to 9, got $piece" >&2; exit 2 ;;
esac
if [ -n "${OUT:-}" ] && [ -d results/regimes ]; then
    tar -czf "$OUT/regimes.tar.gz" results/regimes
fi
