#!/bin/sh
# Boots systemd as process 1 of a PID namespace: boot.sh DIRECTORY SHAPER PROGRAMS, in new PID and mount namespaces. Its root is this
# system's, copied on write; below DIRECTORY are `root`, which goes over it, and `out`, which is shared as /run/out. SHAPER becomes
# /usr/bin/shaper; the directory PROGRAMS is where it is outside, too.
set -eu
directory=$1
shaper=$2
programs=$3
layers=$directory/layers
root=$layers/root

mount --make-rprivate /
mkdir "$layers"
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$root"

# Only units that a test brings, and those that they name: no services of this system.
rm -rf "$root/etc/systemd/system" "$root/etc/shaper" "$root/var/lib/shaper"
cp -r "$directory/root/." "$root"

mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/run/out" "$root/run/systemd/system" "$root$programs"
mount --bind "$directory/out" "$root/run/out"
mount --bind "$programs" "$root$programs"
touch "$root/usr/bin/shaper"
mount --bind "$shaper" "$root/usr/bin/shaper"

cd "$root"
mkdir -p outside
pivot_root . outside
umount -l /outside
exec env -i container=shaper-test /lib/systemd/systemd --system --unit=test.target --log-target=null --show-status=no
