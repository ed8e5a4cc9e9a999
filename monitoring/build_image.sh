#!/bin/bash
# Build the image without a daemon or a registry of images, start it, and ask it one question: `make operate-image`.
# Needs Debian, root, buildah, debootstrap and curl. The base is a Debian root in place of the Dockerfile's.
#   monitoring/build_image.sh [FOLDER]     keeps the image and its layers in FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-.cache/image}")
mkdir -p "$folder"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
build() { buildah --root "$folder/storage" --runroot "$folder/run" "$@"; }

# pip inside takes packages from where pip outside does: folders that it names are mounted at their paths.
mounts=(--volume /etc/ssl/certs:/etc/ssl/certs:ro --volume "$folder/pip.conf:/etc/pip.conf:ro")
links=$(python3 -m pip config list | sed -n "s/.*find-links='\(.*\)'/\1/p" | tail -1)
printf '[global]\nfind-links = %s\n' "$links" > "$folder/pip.conf"
for link in $links; do
    if [ -d "$link" ]; then mounts+=(--volume "$link:$link:ro"); fi
done

if [ -z "$(build images --quiet localhost/debian-python 2> /dev/null)" ]; then
    rm -rf "$folder/base"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip bookworm "$folder/base"
    rm -rf "$folder"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/base/var/cache/apt/archives/*.deb
    base=$(build from scratch)
    build add --quiet "$base" "$folder/base" /
    build commit --quiet "$base" localhost/debian-python
    build rm "$base"
    rm -rf "$folder/base"
fi
build bud --quiet --from localhost/debian-python --network host "${mounts[@]}" \
    --ignorefile monitoring/Dockerfile.dockerignore --file monitoring/Dockerfile --tag localhost/baton .

container=$(build from localhost/baton)
build run --network host "$container" -- baton serve --prefill 1 --decode 2 --port 0 --grpc-port 0 \
    > "$folder/serve.log" 2>&1 &
server=$!
stop() {
    kill "$server" 2> /dev/null || true
    wait "$server" || true
    build rm "$container" > /dev/null
}
trap stop EXIT
for _ in $(seq 300); do
    url=$(sed -n 's/^  HTTP  \([^ ]*\).*/\1/p' "$folder/serve.log")
    [ -z "$url" ] && kill -0 "$server" && sleep 1 || break
done
[ -n "$url" ] || { cat "$folder/serve.log"; echo "the image did not start"; exit 1; }
curl --silent --show-error --fail --max-time 120 "$url/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt": "ada keeps 7", "max_tokens": 4, "ignore_eos": true}' | tee "$folder/answer.json"
echo
grep -q '"completion_tokens":4' "$folder/answer.json"
build images localhost/baton
