//! Buffers that are used again, so that a step allocates none once a few have run.

/// The most buffers that are kept, and the most bytes of them. Those of a burst go back to the
/// system.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 512 << 20;

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

    /// Gives a buffer back. The oldest ones make room for it.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        if self.free.len() >= KEPT || buffer.capacity() > KEPT_BYTES {
            return;
        }
        self.free.push(buffer);
        let mut bytes: usize = self.free.iter().map(Vec::capacity).sum();
        while bytes > KEPT_BYTES {
            bytes -= self.free.remove(0).capacity();
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

    #[test]
    fn bursts_of_large_buffers_are_given_back() {
        let mut pool = Pool::default();
        // Reserved, not touched: they take no memory.
        (0..16).for_each(|_| pool.put(Vec::with_capacity(KEPT_BYTES / 4)));
        let kept: usize = pool.free.iter().map(Vec::capacity).sum();
        assert!(kept <= KEPT_BYTES && pool.free.len() == 4, "{kept}");
        pool.put(Vec::with_capacity(KEPT_BYTES + 1));
        assert_eq!(pool.free.len(), 4);
    }
}
