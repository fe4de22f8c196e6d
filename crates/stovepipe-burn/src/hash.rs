//! Hashes that are the same on every platform and in every version.
//!
//! Seeds, parameter ids and keyed randomness are made of them. The standard library's hasher
//! doesn't promise the same hash in every version.

/// Hashes the bytes of `seed` and `name` by FNV-1a, finished as in SplitMix64.
pub(crate) fn stable_hash(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    scramble(hash)
}

/// Mixes by the last steps of SplitMix64: every bit of the result depends on every bit of
/// `hash`.
pub(crate) fn scramble(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_pinned() {
        // Initial parameters of saved runs depend on these.
        assert_eq!(stable_hash(0, "a"), 0x0d38_d3c8_a628_cc82);
        assert_eq!(stable_hash(0, "blocks.3"), 0x4b6b_15d9_5de3_1cf3);
        assert_eq!(stable_hash(7, "blocks.3"), 0x261c_173c_7569_994b);
    }
}
