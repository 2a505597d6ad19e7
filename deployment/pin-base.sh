#!/bin/sh
# Hold the base of the images to what its tag means now: the digest goes into .env, which Compose reads for every build.
#
#   sh deployment/pin-base.sh [IMAGE:TAG]
#
# Run it again to take Debian's and Python's repairs, and build anew.
set -eu
cd "$(dirname "$0")/.."
base=${1:-python:3.11-slim-bookworm}
case ${base##*/} in
    *@*) echo "pin-base: $base has a digest already; give the tag that it is to be taken from" >&2; exit 2 ;;
    *:*) ;;
    *) echo "pin-base: $base has no tag; give one, such as python:3.11-slim-bookworm" >&2; exit 2 ;;
esac
said=$(docker pull "$base")
digest=$(printf '%s\n' "$said" | sed -n 's/^Digest: //p')
if [ -z "$digest" ]; then
    echo "pin-base: the registry gave no digest for $base; nothing was changed. It said: $said" >&2
    exit 1
fi
pinned=${base%:*}@$digest
new=$(mktemp .env.XXXXXX)
trap 'rm -f "$new"' EXIT
if [ -f .env ]; then
    sed '/^BOUQUET_PYTHON_IMAGE=/d' .env > "$new"
fi
echo "BOUQUET_PYTHON_IMAGE=$pinned" >> "$new"
mv "$new" .env
echo "$base is $pinned (in .env); docker compose build takes it from now on"
