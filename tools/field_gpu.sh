#!/bin/sh
# Measures what is missing of the field on a GPU, in pieces that end within ten minutes:
#     sh tools/field_gpu.sh PIECE OUT [PYTHON]
# PIECE is 1 to 9, the most telling cells first; a piece that was cut off continues where it was,
# and one that is done costs nothing. OUT gets results/field, logs and results.tar.gz: unpack that
# over the repository's results/. Keep the folder runs/ between pieces. For a trial:
#     FIELD_OPTIONS='--device cpu --victims 1 --iterations 3' sh tools/field_gpu.sh 1 /tmp/out
set -euf
piece=${1:?"name a piece: 1 to 9"}
out=${2:?"name a folder for the results"}
python=${3:-python}

measure() {
    $python tools/run_cells.py --out "$out" --processes "${FIELD_PROCESSES:-4}" \
        --minutes "${FIELD_MINUTES:-8.5}" --options "${FIELD_OPTIONS:---device cuda}" "$@"
}

honest() {
    network=$1
    shift
    patterns=
    for family in "$@"; do
        patterns="$patterns field:$family-*-$network-honest"
    done
    measure $patterns
}

case $piece in
1) honest resnet18 none pruning quantise signsgd percentile-privacy topk soteria precode ;;
2) honest vit-small none pruning quantise signsgd percentile-privacy topk soteria precode ;;
3) measure 'field:*-vit-small-malicious' 'field:*-resnet18-malicious' ;;
4) measure 'field:*-quickstart-accuracy' 'field:*-vit-small-accuracy' ;;
5) honest vit-small '[a-z]*' ;;
6) honest resnet18 gaussian dp tip agp dpsgd half flower-* csvar image-noise mixup instahide ;;
7) honest resnet18 '[a-z]*' ;;
8) measure 'field:*-resnet18-accuracy' ;;
9) measure 'field:*-quickstart-honest' 'field:*-quickstart-malicious' ;;
*) echo "piece: name 1 to 9, got $piece" >&2; exit 2 ;;
esac
