# shellcheck shell=bash disable=SC2034
# Shared by check and run: a folder of their own, processes that end with the script, and a simulated node.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shipped=$here/../../systemd/prometheus
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpuadmit-prometheus.XXXXXX")
started=()

end() {
    local status=$? pid
    trap - EXIT
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

fail() {
    printf 'FAILED: %s\n' "$1" >&2
    tail -n 20 "$folder"/*.log >&2 || true
    exit 1
}

# start NAME COMMAND…: in the background, its output in NAME.log.
start() {
    : >"$folder/$1.log"
    "${@:2}" >>"$folder/$1.log" 2>&1 </dev/null &
    started+=($!)
}

# until_true SECONDS WHAT COMMAND…
until_true() {
    local deadline=$((SECONDS + $1))
    until "${@:3}"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$2 within $1 s"
        sleep 0.2
    done
}

# get ADDRESS PATH: the body, by HTTP/1.0.
get() {
    local line
    exec 3<>"/dev/tcp/${1%:*}/${1##*:}" || return
    printf 'GET %s HTTP/1.0\r\nHost: x\r\n\r\n' "$2" >&3
    while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do :; done
    cat <&3
    exec 3>&-
}

# start_node BINARIES [SCENARIO]: sets `node` to the address of its metrics.
start_node() {
    printf '[prometheus]\naddress = "127.0.0.1:0"\n' >"$folder/gpuadmit.toml"
    start gpuadmitd "$1/gpuadmitd" --config "$folder/gpuadmit.toml" --socket "$folder/gpuadmit.sock" \
        "--simulate${2:+=$2}"
    until_true 20 'the simulated node serves metrics' grep -q 'http://.*/metrics' "$folder/gpuadmitd.log"
    node=$(grep -o '127\.0\.0\.1:[0-9]*/metrics' "$folder/gpuadmitd.log" | head -n 1 | cut -d/ -f1)
}
