#!/usr/bin/env bash
# pack.sh PAYLOAD: PAYLOAD/fork.tar.xz anew, from this clone: the files of the payload's vLLM that the fork changes or adds.
# KUNLUNFORK is the command that applies (kunlunfork).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
payload=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xJf "$payload/py.tar.xz" -C "$work" site
cd "$work/site"
find . -type f -exec touch -d '2000-01-01' {} +
${KUNLUNFORK:-kunlunfork} apply --in-place . --repo "$here/../.." >&2
find . -type f -newermt '2001-01-01' -path './vllm/*' -printf '%P\n' | sort > "$work/files"
tar -cJf "$payload/fork.tar.xz" -T "$work/files"
wc -l < "$work/files"
