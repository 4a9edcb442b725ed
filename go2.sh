source /tmp/w/env-t43.sh; cd $TMPDIR/k
PYTHONPATH=/tmp/w/tmp-t43/snap exec timeout 1500 /tmp/w/pk/bin/python -W ignore hub.py --kept all$1.json --rows "$2" > rows$1.txt 2> err$1.txt
