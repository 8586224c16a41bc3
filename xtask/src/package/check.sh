#!/bin/sh
# Installs the package into a copy of this system, tries it, and removes it: check.sh PACKAGE DIRECTORY, as root in a mount
# namespace of its own (unshare --mount --propagation private). The copy is an overlay below DIRECTORY and goes with the
# namespace.
set -eu
package=$1
layers=$2

fail() {
    echo "error: $*" >&2
    exit 1
}
step() {
    echo "== $*"
}
# In the copy, with a clean environment.
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TERM=dumb HOME=/root chroot "$layers/root" "$@"
}
# Runs a command in the copy, which must succeed and say nothing.
quietly() {
    said=$(inside "$@" 2>&1) || fail "$*: $said"
    [ -z "$said" ] || fail "$*: $said"
}

mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$layers/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
mount --rbind /dev "$layers/root/dev"
mount -t proc proc "$layers/root/proc"
mount -t tmpfs tmpfs "$layers/root/run"
mount -t tmpfs tmpfs "$layers/root/tmp"
cp "$package" "$layers/root/tmp/package.deb"

step install
inside dpkg --install /tmp/package.deb
inside shaper --version

step configuration
inside shaper check --strict --offline | grep -q '^/etc/shaper: 0 lanes' || fail "the package governs something"
for example in "$layers"/root/etc/shaper/lanes.d/*.toml.example; do
    name=$(basename "$example" .toml.example)
    mkdir -p "$layers/root/tmp/$name/lanes.d"
    cp "$example" "$layers/root/tmp/$name/lanes.d/$name.toml"
    inside shaper check --strict --offline --config "/tmp/$name" >/dev/null || fail "example $name"
done

step unit
quietly systemd-analyze verify /usr/lib/systemd/system/shaper.service
# docs/installation.md names the figure.
inside systemd-analyze security --offline=true --threshold=35 --no-pager shaper.service | tail -1

step manual pages
pages=0
for page in "$layers"/root/usr/share/man/man1/shaper*.1.gz; do
    name=$(basename "$page")
    quietly sh -c "man --warnings --local-file /usr/share/man/man1/$name >/dev/null"
    quietly sh -c "zcat /usr/share/man/man1/$name | mandoc -T lint -W warning"
    pages=$((pages + 1))
done
inside man shaper-run | grep -q -- --state || fail "man shaper-run has no --state"
echo "$pages pages"

step completions
# shellcheck disable=SC2016
inside bash -c '
    . /usr/share/bash-completion/completions/shaper
    complete -p shaper >/dev/null
    COMP_WORDS=(shaper stat) COMP_CWORD=1
    _shaper shaper stat shaper
    echo "${COMPREPLY[*]}"
' | grep -qx 'status stats' || fail "bash does not complete"
# shellcheck disable=SC2016
inside zsh -fc '
    autoload -Uz compinit && compinit -D -u
    autoload -Uz +X _shaper
    echo "$_comps[shaper]"
' | grep -qx _shaper || fail "zsh does not load the completion"
inside fish --no-config -c '
    source /usr/share/fish/vendor_completions.d/shaper.fish
    complete --do-complete "shaper statu"
' | grep -q '^status' || fail "fish does not complete"

step remove
mkdir -p "$layers/root/var/lib/shaper/default"
touch "$layers/root/var/lib/shaper/default/lanes.json"
# Pins of an instance that is not the unit's.
pins=$layers/root/sys/fs/bpf
mkdir -p "$pins"
mount -t bpf bpf "$pins"
mkdir -p "$pins/shaper/gpu/aside-0"
inside dpkg --purge shaper
[ ! -e "$pins/shaper" ] || fail "pins are left behind: $(find "$pins/shaper")"
umount "$pins"
# What was there before and is gone now would show, too, as a device. Man keeps the pages that it has shown.
left=$(cd "$layers/upper" && find . -path '*shaper*' ! -path './var/cache/man/*')
[ -z "$left" ] || fail "left behind: $left"
if inside dpkg-query --show shaper 2>/dev/null; then
    fail "dpkg still knows the package"
fi
