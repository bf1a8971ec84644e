# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Long-running commands, one line each. Sourced by the scripts beside this one.

# fail WHAT: one line that says what is wrong and what to do.
fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# step NAME WHAT-TO-DO LOG COMMAND...: runs COMMAND, its output in the file LOG. Shows NAME, on a
# terminal how far the build is, and the time it took.
step() {
    local name=$1 advice=$2 log=$3 start=$SECONDS progress=
    shift 3
    mkdir -p "${log%/*}"
    : >"$log"
    printf '%s ...' "$name"
    if [ -t 1 ]; then
        while sleep 1; do
            printf '\r%s ... %s\033[K' "$name" "$(tail -n 5 "$log" | grep -oE '^\[[^]]*\]' | tail -n 1)"
        done &
        progress=$!
    fi
    local status=0
    "$@" >"$log" 2>&1 </dev/null || status=$?
    [ -z "$progress" ] || { kill "$progress" && wait "$progress"; } 2>/dev/null || true
    [ -z "$progress" ] || printf '\r%s ...\033[K' "$name"
    if [ "$status" -ne 0 ]; then
        printf ' failed\n'
        fail "$name: failed, see $log; $advice"
    fi
    printf ' %d s\n' $((SECONDS - start))
}

# at_least VERSION LEAST
at_least() {
    [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# install_packages PACKAGE...: installs those of Debian's or Ubuntu's packages that are missing.
install_packages() {
    local package missing=() as_root=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        fail "needs ${missing[*]}; this system has no apt-get, so install them by hand and use the presets"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "needs ${missing[*]}: run as root, or ask for these packages"
        as_root=(sudo)
    fi
    as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    update_package_lists "${as_root[@]}"
    step "Installing ${missing[*]}" "check the network and the package sources, then run again" \
        "${logs:?}/install.log" "${as_root[@]}" install --no-install-recommends "${missing[@]}"
}

# update_package_lists APT-GET...: once a run.
update_package_lists() {
    [ -z "${package_lists_updated:-}" ] || return 0
    step "Updating the package lists" "check the network, then run again" "${logs:?}/update.log" "$@" update
    package_lists_updated=yes
}
