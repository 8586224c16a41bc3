//! How a gateway that says "so many a minute" may meter in truth: a few at once, then one at a time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A token bucket. Clones are the same bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    burst: usize,
    refill: Duration,
    level: Arc<Mutex<Level>>,
}

#[derive(Debug)]
struct Level {
    tokens: usize,
    /// When the last token was added, or the bucket was last found full.
    filled: Instant,
}

impl Bucket {
    /// Full: `burst` requests at once, and one more after every `refill`.
    pub fn new(burst: usize, refill: Duration) -> Self {
        let level = Level {
            tokens: burst,
            filled: Instant::now(),
        };
        Self {
            burst,
            refill,
            level: Arc::new(Mutex::new(level)),
        }
    }

    /// Takes a token for one request; false if there is none.
    pub fn take(&self) -> bool {
        let mut level = self.level.lock().expect("nothing panics under this lock");
        while level.filled.elapsed() >= self.refill {
            if level.tokens == self.burst {
                level.filled = Instant::now();
                break;
            }
            level.tokens += 1;
            level.filled += self.refill;
        }
        if level.tokens == 0 {
            return false;
        }
        level.tokens -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_one_at_a_time() {
        let bucket = Bucket::new(3, Duration::from_secs(3600));
        let given = (0..5).filter(|_| bucket.take()).count();
        assert_eq!(given, 3);
        bucket.level.lock().unwrap().filled -= Duration::from_secs(2 * 3600);
        let given = (0..5).filter(|_| bucket.take()).count();
        assert_eq!(given, 2);
    }
}
