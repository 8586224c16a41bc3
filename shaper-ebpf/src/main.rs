//! shaper's kernel programs: the entry points, and nothing else.
//!
//! All of them are attached to the class cgroups and see the sockets created there. Mechanism only: the kernel tags,
//! counts, holds and lets go; who goes next is the controller's business. Every error path lets the packet or the
//! connect pass and counts it.
//!
//! Needed by all: Linux 5.12 (compare-and-swap in BPF).
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod access;
mod classify;
mod connect;
mod count;
mod dns;
mod egress;
mod emit;
mod glimpse;
mod head;
mod ingress;
mod maps;
mod packet;
mod presence;
mod record;
mod release;
mod resume;
mod slot;
mod socket;
mod sockops;
mod udp;

use aya_ebpf::{
    macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr, sock_ops},
    programs::{SkBuffContext, SockAddrContext, SockContext, SockOpsContext},
};

/// A connect to an IPv4 address. Linux 6.1: `bpf_set_retval` for this program type.
#[cgroup_sock_addr(connect4)]
pub fn shaper_connect4(ctx: SockAddrContext) -> i32 {
    connect::connect(&ctx, connect::endpoint_v4(&ctx))
}

/// A connect to an IPv6 address, IPv4-mapped ones among them. Linux 6.1, as above.
#[cgroup_sock_addr(connect6)]
pub fn shaper_connect6(ctx: SockAddrContext) -> i32 {
    connect::connect(&ctx, connect::endpoint_v6(&ctx))
}

/// A datagram is sent to an IPv4 address without a connect. Linux 6.1, as above.
#[cgroup_sock_addr(sendmsg4)]
pub fn shaper_sendmsg4(ctx: SockAddrContext) -> i32 {
    udp::datagram(&ctx, connect::endpoint_v4(&ctx))
}

/// A datagram is sent to an IPv6 address without a connect. Linux 6.1, as above.
#[cgroup_sock_addr(sendmsg6)]
pub fn shaper_sendmsg6(ctx: SockAddrContext) -> i32 {
    udp::datagram(&ctx, connect::endpoint_v6(&ctx))
}

/// A packet leaves a socket. Linux 5.2: socket storage.
#[cgroup_skb(egress)]
pub fn shaper_egress(ctx: SkBuffContext) -> i32 {
    egress::packet(&ctx)
}

/// A packet reaches a socket. Linux 5.17: `bpf_loop`.
#[cgroup_skb(ingress)]
pub fn shaper_ingress(ctx: SkBuffContext) -> i32 {
    ingress::packet(&ctx)
}

/// TCP connects, completes a handshake, changes state. Linux 5.8: the `sk` field with socket storage.
#[sock_ops]
pub fn shaper_sockops(ctx: SockOpsContext) -> u32 {
    sockops::operation(&ctx)
}

/// The last descriptor of a socket is closed, by `close` or by the process's end. Linux 5.9.
#[cgroup_sock(sock_release)]
pub fn shaper_release(ctx: SockContext) -> i32 {
    release::socket(&ctx)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
