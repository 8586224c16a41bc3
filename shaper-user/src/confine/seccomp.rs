//! The system calls that a controller never makes.
//!
//! A list of what is forbidden and not of what is allowed: the C library and its name service modules change their calls
//! from version to version, and a filter that breaks name resolution after an upgrade of the host is worse than none. A
//! forbidden call fails with EPERM.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// Starting and looking into other processes, changing who one is, mounts, modules, the clock, keys, kernel interfaces
/// with a history of holes.
const FORBIDDEN: &[c_long] = &[
    // Programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    // Identity.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_personality,
    // Namespaces and file systems.
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    // Kernel interfaces.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
];

/// Those that only this architecture has.
#[cfg(target_arch = "x86_64")]
const FORBIDDEN_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_mknod,
    libc::SYS_kexec_file_load,
    libc::SYS_uselib,
    libc::SYS_fork,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[c_long] = &[];

/// Commands of bpf(2) (`enum bpf_cmd` of include/uapi/linux/bpf.h) that belong to loading: `BPF_MAP_CREATE`,
/// `BPF_PROG_LOAD`, `BPF_RAW_TRACEPOINT_OPEN`, `BPF_BTF_LOAD`. Maps are read and links made as long as the controller runs.
const LOADING: [u64; 4] = [0, 5, 17, 18];

/// On x86-64, the same calls by the x32 interface, where a kernel has it (`__X32_SYSCALL_BIT`).
#[cfg(target_arch = "x86_64")]
const OTHER_INTERFACE: Option<c_long> = Some(0x4000_0000);
#[cfg(not(target_arch = "x86_64"))]
const OTHER_INTERFACE: Option<c_long> = None;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("none for this architecture: {0}")]
    Filter(#[from] BackendError),
    #[error("{0}")]
    Install(#[from] seccompiler::Error),
}

/// Puts the filter on the calling thread and those it starts.
///
/// # Errors
/// On other architectures than x86-64, AArch64 and 64-bit RISC-V, and on kernels without CONFIG_SECCOMP_FILTER.
pub fn install() -> Result<(), SeccompError> {
    apply_filter(&program()?)?;
    Ok(())
}

fn program() -> Result<BpfProgram, BackendError> {
    let mut rules = rules()?;
    if let Some(bit) = OTHER_INTERFACE {
        let other: Vec<_> = rules
            .iter()
            .map(|(call, rules)| (call | bit, rules.clone()))
            .collect();
        rules.extend(other);
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?;
    filter.try_into()
}

fn rules() -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    // No rules: whatever the arguments.
    let whole = FORBIDDEN.iter().chain(FORBIDDEN_HERE);
    let mut rules: BTreeMap<_, _> = whole.map(|call| (*call, Vec::new())).collect();
    let loading = LOADING.map(|command| argument(0, SeccompCmpOp::Eq, command));
    rules.insert(
        libc::SYS_bpf,
        loading.into_iter().collect::<Result<_, _>>()?,
    );
    // Any namespace but a network's.
    let network = libc::CLONE_NEWNET as u64;
    rules.insert(
        libc::SYS_setns,
        vec![argument(1, SeccompCmpOp::Ne, network)?],
    );
    Ok(rules)
}

/// If argument number `number`, 32 bits of it, compares so.
fn argument(number: u8, compares: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(number, SeccompCmpArgLen::Dword, compares, value)?;
    SeccompRule::new(vec![condition])
}

#[cfg(test)]
mod tests {
    use std::{fs, io, process::Command, thread};

    use super::*;

    /// In a thread of its own, which takes the filter with it.
    #[test]
    fn forbidden_calls_fail_and_the_others_work() {
        thread::spawn(|| {
            install().unwrap();
            let exec = Command::new("/bin/true").status().unwrap_err();
            assert_eq!(exec.raw_os_error(), Some(libc::EPERM), "{exec}");
            // SAFETY: neither call takes pointers that it would follow.
            let (loading, leaving) = unsafe {
                (
                    libc::syscall(libc::SYS_bpf, 5, 0, 0),
                    libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNS),
                )
            };
            assert_eq!((loading, leaving), (-1, -1));
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
            fs::read_to_string("/proc/self/status").unwrap();
            thread::spawn(|| ()).join().unwrap();
        })
        .join()
        .unwrap();
    }
}
