#!/bin/sh
# The first process in the virtual machine, in its initial RAM disk: makes a root of the host's files, shared and
# mounted read-only, with memory above them for whatever is written; then goes on there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
# Built in or a module, depending on the kernel.
for module in virtio_pci virtiofs overlay; do
    $b modprobe $module
done
$b mount -t virtiofs -o ro host /host
$b mount -t tmpfs tmpfs /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root
$b cp /scenarios.sh /memory/upper/scenarios.sh
for directory in proc sys dev; do
    $b mount --move /$directory /root/$directory
done
exec $b switch_root /root /bin/sh /scenarios.sh
