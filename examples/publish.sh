#!/bin/sh
# Makes a git repository of the example fleet: examples/publish.sh FOLDER
#
# The repository gets a commit on the branch main, and for each component the tag of the
# version that its Chart.yaml names, as COMPONENT/vVERSION.
set -eu
if [ $# -ne 1 ] || [ -e "$1" ]; then
  echo "usage: examples/publish.sh FOLDER, a folder that does not exist yet" >&2
  exit 2
fi
keelson=$(cd "$(dirname "$0")/.." && pwd)
cp -R "$keelson/examples/fleet" "$1"
cp -R "$keelson/components/workload-controllers" "$1/components/"
cd "$1"
git init -q -b main
git add -A
git commit -q -m "Our fleet"
for chart in components/*/template/Chart.yaml; do
  component=$(basename "$(dirname "$(dirname "$chart")")")
  git tag "$component/v$(sed -n 's/^version: //p' "$chart")"
done
