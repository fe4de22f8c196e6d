//! Buffers that are used again, so that a step allocates none once a few have run.

/// The most buffers that are kept. Those of a burst go back to the system.
const KEPT: usize = 64;

/// Buffers that nobody uses now.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
}

impl Pool {
    /// The smallest buffer with room for `bytes`, of several the one used last, which caches still
    /// hold; or else the largest there is, or a new one. Its contents mean nothing.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let newest_first = self.free.iter().enumerate().rev();
        let fits = newest_first.filter(|(_, buffer)| buffer.capacity() >= bytes);
        let best = fits.min_by_key(|(_, buffer)| buffer.capacity());
        let largest = || self.free.iter().enumerate().max_by_key(|(_, buffer)| buffer.capacity());
        match best.or_else(largest).map(|(index, _)| index) {
            Some(index) => self.free.remove(index),
            None => Vec::with_capacity(bytes),
        }
    }

    /// Gives a buffer back.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        if self.free.len() < KEPT {
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_that_fits_is_used_again() {
        let mut pool = Pool::default();
        for capacity in [100, 1000, 10] {
            pool.put(Vec::with_capacity(capacity));
        }
        let capacities = [50, 50, 50].map(|bytes| pool.take(bytes).capacity());
        assert_eq!(capacities, [100, 1000, 10]);
        assert_eq!(pool.take(50).capacity(), 50);
        (0..2 * KEPT).for_each(|_| pool.put(Vec::new()));
        assert_eq!(pool.free.len(), KEPT);
    }
}
