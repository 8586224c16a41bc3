# In the virtual machine, on the host's files: what a running system has besides files. $modules is where this kernel's
# modules are, $patience the bound in seconds on all that follows.
b=/bin/busybox
(
    $b sleep "$patience"
    $b poweroff -f
) &
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root NO_COLOR=1
exec </dev/null >/dev/ttyS1 2>&1

mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm --mkdir
mount -t devpts devpts /dev/pts --mkdir
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mkdir -p /lib/modules
mount --bind "$modules" /lib/modules
# The kernel loads modules by itself: socket diagnostics, veth.
ln -sf /bin/busybox /sbin/modprobe
ip link set lo up
# Left by scenarios on the host.
rm -f /tmp/shaper-test-turn.lock
: >"$SHAPER_TEST_SKIPS"

echo "@vm ready $(uname -r)"

# What this kernel allows, tried piece by piece; and why, where the verifier refuses a program.
"${SHAPER_BIN}" doctor --verifier-log /tmp/verifier.log
echo "@vm doctor $?"
if [ -e /tmp/verifier.log ]; then
    sed 's/^/@vm verifier /' /tmp/verifier.log
fi

# suite NAME DIRECTORY PROGRAM ARGUMENT...
suite() {
    name=$1
    shift
    cd "$1" || return
    export CARGO_MANIFEST_DIR="$1"
    shift
    echo "@vm suite $name"
    "$@"
    echo "@vm ended $?"
}
