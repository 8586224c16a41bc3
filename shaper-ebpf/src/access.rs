//! Loads and values whose shape the compiler must not change, because the verifier recognises only that shape.

use core::arch::asm;

/// Loads the 32-bit word at a constant offset from a context or socket pointer.
///
/// The verifier rewrites such loads, and only as "base register plus constant". From plain Rust the compiler may share
/// one load between two fields through a computed address, which is refused as "pointer arithmetic on sock prohibited".
/// It also knows a `u32` field to be 32 bits wide and would compare packet pointers, which live in such fields, as
/// 32-bit numbers.
#[inline(always)]
pub fn load_word<T, const OFFSET: usize>(base: *const T) -> usize {
    load_word_of::<T, OFFSET, 0>(base)
}

/// The same for word number `INDEX` of an array at `OFFSET`.
#[inline(always)]
pub fn load_word_of<T, const OFFSET: usize, const INDEX: usize>(base: *const T) -> usize {
    let word: usize;
    // SAFETY: the verifier checks the access; a program that reads elsewhere does not load.
    unsafe {
        asm!(
            "{word} = *(u32 *)({base} + {offset})",
            base = in(reg) base,
            word = lateout(reg) word,
            offset = const OFFSET + 4 * INDEX,
            options(readonly, nostack),
        );
    }
    word
}

/// The same number, of which the compiler knows nothing: a range check after this stays in the code, where the
/// verifier sees it.
#[inline(always)]
pub fn opaque(mut number: u32) -> u32 {
    // SAFETY: moves a register to itself.
    unsafe {
        asm!("{number} = {number}", number = inout(reg) number, options(pure, nomem, nostack))
    };
    number
}

/// The same number, which the verifier then knows to lie between `MIN` and `MAX`; `None` if it does not.
///
/// Counted from `MIN`: of two comparisons LLVM makes one of `number - MIN`, and the verifier learns nothing of `number`.
/// From a comparison with zero it learns no lower bound before Linux 6.8.
#[inline(always)]
pub fn within<const MIN: u32, const MAX: u32>(number: u32) -> Option<u32> {
    let above = opaque(number.wrapping_sub(MIN));
    if above > MAX - MIN {
        return None;
    }
    Some(above + MIN)
}

/// The eight bytes at `from`, wherever they lie, the first one lowest. From plain Rust the compiler makes eight loads: it
/// does not know that the kernel's compilers for x86-64 and aarch64 take any address
/// (`CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`).
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub unsafe fn load_unaligned(from: *const u8) -> u64 {
    let word: u64;
    // SAFETY: as promised by the caller, and checked by the verifier.
    unsafe {
        asm!(
            "{word} = *(u64 *)({from} + 0)",
            from = in(reg) from,
            word = lateout(reg) word,
            options(readonly, nostack),
        );
    }
    word
}

/// Writes zeros into the eight bytes at `to`, wherever they lie.
///
/// # Safety
/// They must be writable.
#[inline(always)]
pub unsafe fn clear_word(to: *mut u8) {
    // SAFETY: as promised by the caller, and checked by the verifier.
    unsafe {
        asm!(
            "*(u64 *)({to} + 0) = {zero}",
            to = in(reg) to,
            zero = in(reg) 0_u64,
            options(nostack),
        );
    }
}
