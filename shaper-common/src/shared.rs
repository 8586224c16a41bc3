//! Words in memory that the kernel programs and the controller both write.
//!
//! `core::sync::atomic` has no compare-and-swap on the BPF target, although the instruction set has one (Linux 5.12,
//! `BPF_ATOMIC | BPF_CMPXCHG`), so that target uses the compiler's intrinsics. All operations that write are
//! sequentially consistent; BPF's fetching atomics are full barriers (`Documentation/bpf/standardization`).

use core::cell::UnsafeCell;

macro_rules! shared_word {
    ($name:ident, $int:ty) => {
        /// An integer shared by kernel programs and controller, changed only by atomic operations.
        #[repr(transparent)]
        pub struct $name(UnsafeCell<$int>);

        // SAFETY: every access below is atomic.
        unsafe impl Sync for $name {}

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&self.load(), f)
            }
        }

        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(UnsafeCell::new(value))
            }

            #[inline(always)]
            pub fn load(&self) -> $int {
                backend::load(self.0.get())
            }

            /// A plain store; use it only where this side is the only writer or no order matters.
            #[inline(always)]
            pub fn store(&self, value: $int) {
                backend::store(self.0.get(), value);
            }

            /// Adds and returns the value before; wraps.
            #[inline(always)]
            pub fn add(&self, value: $int) -> $int {
                backend::add(self.0.get(), value)
            }

            /// Subtracts and returns the value before; wraps.
            #[inline(always)]
            pub fn sub(&self, value: $int) -> $int {
                backend::add(self.0.get(), value.wrapping_neg())
            }

            /// Stores `value`, returns the value before. A full barrier.
            #[inline(always)]
            pub fn swap(&self, value: $int) -> $int {
                backend::swap(self.0.get(), value)
            }

            /// Stores `new` if the word is `current`. `Err` carries what it was instead.
            #[inline(always)]
            pub fn compare_exchange(&self, current: $int, new: $int) -> Result<(), $int> {
                let seen = backend::compare_exchange(self.0.get(), current, new);
                if seen == current { Ok(()) } else { Err(seen) }
            }

            /// Applies `change` until it sticks, at most [`CAS_TRIES`](crate::CAS_TRIES) times.
            ///
            /// `Ok((before, after))` when stored; `Err(seen)` when `change` returned `None` for `seen` or the word
            /// stayed contended.
            #[inline(always)]
            pub fn update(
                &self,
                mut change: impl FnMut($int) -> Option<$int>,
            ) -> Result<($int, $int), $int> {
                let mut seen = self.load();
                for _ in 0..crate::CAS_TRIES {
                    let Some(next) = change(seen) else {
                        return Err(seen);
                    };
                    match self.compare_exchange(seen, next) {
                        Ok(()) => return Ok((seen, next)),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }
    };
}

shared_word!(SharedU64, u64);
shared_word!(SharedU32, u32);

#[cfg(target_arch = "bpf")]
mod backend {
    use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg, atomic_xadd, atomic_xchg};

    pub(super) trait Word: Copy + 'static {}
    impl Word for u32 {}
    impl Word for u64 {}

    #[inline(always)]
    pub(super) fn load<T: Word>(word: *mut T) -> T {
        // SAFETY: `word` comes from a live reference; BPF loads of aligned words up to 8 bytes do not tear.
        unsafe { core::ptr::read_volatile(word) }
    }

    #[inline(always)]
    pub(super) fn store<T: Word>(word: *mut T, value: T) {
        // SAFETY: as in `load`.
        unsafe { core::ptr::write_volatile(word, value) }
    }

    #[inline(always)]
    pub(super) fn add<T: Word>(word: *mut T, value: T) -> T {
        // SAFETY: as in `load`.
        unsafe { atomic_xadd::<T, T, { SeqCst }>(word, value) }
    }

    #[inline(always)]
    pub(super) fn swap<T: Word>(word: *mut T, value: T) -> T {
        // SAFETY: as in `load`.
        unsafe { atomic_xchg::<T, { SeqCst }>(word, value) }
    }

    #[inline(always)]
    pub(super) fn compare_exchange<T: Word>(word: *mut T, current: T, new: T) -> T {
        // SAFETY: as in `load`.
        unsafe { atomic_cxchg::<T, { SeqCst }, { SeqCst }>(word, current, new).0 }
    }
}

#[cfg(not(target_arch = "bpf"))]
mod backend {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

    pub(super) trait Word: Copy {
        fn load(word: *mut Self) -> Self;
        fn store(word: *mut Self, value: Self);
        fn add(word: *mut Self, value: Self) -> Self;
        fn swap(word: *mut Self, value: Self) -> Self;
        fn compare_exchange(word: *mut Self, current: Self, new: Self) -> Self;
    }

    macro_rules! word {
        ($int:ty, $atomic:ty) => {
            impl Word for $int {
                fn load(word: *mut Self) -> Self {
                    // SAFETY: `word` comes from a live, aligned `UnsafeCell` that is only accessed atomically.
                    unsafe { <$atomic>::from_ptr(word) }.load(SeqCst)
                }
                fn store(word: *mut Self, value: Self) {
                    // SAFETY: as in `load`.
                    unsafe { <$atomic>::from_ptr(word) }.store(value, SeqCst)
                }
                fn add(word: *mut Self, value: Self) -> Self {
                    // SAFETY: as in `load`.
                    unsafe { <$atomic>::from_ptr(word) }.fetch_add(value, SeqCst)
                }
                fn swap(word: *mut Self, value: Self) -> Self {
                    // SAFETY: as in `load`.
                    unsafe { <$atomic>::from_ptr(word) }.swap(value, SeqCst)
                }
                fn compare_exchange(word: *mut Self, current: Self, new: Self) -> Self {
                    // SAFETY: as in `load`.
                    match unsafe { <$atomic>::from_ptr(word) }
                        .compare_exchange(current, new, SeqCst, SeqCst)
                    {
                        Ok(seen) | Err(seen) => seen,
                    }
                }
            }
        };
    }
    word!(u32, AtomicU32);
    word!(u64, AtomicU64);

    pub(super) fn load<T: Word>(word: *mut T) -> T {
        T::load(word)
    }
    pub(super) fn store<T: Word>(word: *mut T, value: T) {
        T::store(word, value);
    }
    pub(super) fn add<T: Word>(word: *mut T, value: T) -> T {
        T::add(word, value)
    }
    pub(super) fn swap<T: Word>(word: *mut T, value: T) -> T {
        T::swap(word, value)
    }
    pub(super) fn compare_exchange<T: Word>(word: *mut T, current: T, new: T) -> T {
        T::compare_exchange(word, current, new)
    }
}
