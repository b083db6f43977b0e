#!/bin/sh
# Learns the mean of a column with what a small image has.
set -eu
for option in "$@"; do
  case "$option" in
    --data=*) data=${option#--data=} ;;
  esac
done
model=/gcs/${AIP_MODEL_DIR#gs://}
mkdir -p "$model"
sum=0
count=0
while read -r value; do
  sum=$((sum + value))
  count=$((count + 1))
done < "$data"
echo "{\"severity\": \"INFO\", \"message\": \"read $count values\"}"
printf '{"mean": %s, "count": %s}\n' "$((sum / count))" "$count" > "$model/model.json"
