//! The bytes that ranks lack to hold layers however these are cut, found without cutting them.

/// The bytes that every rank lacks to hold its part of so many layers in order. `bytes` says what a
/// rank needs for a layer.
pub(super) fn lacking_in_order(
    layers: usize,
    capacities: &[u64],
    bytes: impl Fn(usize, usize) -> u64,
) -> Option<u64> {
    least(|more| {
        let mut next = 0;
        for (rank, has) in capacities.iter().enumerate() {
            let mut room = has.saturating_add(more);
            while let Some(left) =
                (next < layers).then(|| bytes(rank, next)).and_then(|bytes| room.checked_sub(bytes))
            {
                (room, next) = (left, next + 1);
            }
        }
        next == layers
    })
}

/// The bytes that every rank lacks so that all together can hold so many layers.
pub(super) fn lacking_in_all(
    layers: usize,
    capacities: &[u64],
    bytes: impl Fn(usize) -> u64,
) -> Option<u64> {
    let needed = (0..layers).map(bytes).fold(0, u64::saturating_add);
    least(|more| {
        let rooms = capacities.iter().map(|has| has.saturating_add(more));
        needed <= rooms.fold(0, u64::saturating_add)
    })
}

/// The least number above zero with which something holds that holds with all larger ones; none if
/// it holds with zero.
fn least(holds: impl Fn(u64) -> bool) -> Option<u64> {
    if holds(0) {
        return None;
    }
    let (mut low, mut high) = (1, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_rank_lacks_is_found_to_the_byte() {
        let layers = [10, 20, 30, 40];
        let in_order = |capacities: &[u64]| lacking_in_order(4, capacities, |_, l| layers[l]);
        let in_all = |capacities: &[u64]| lacking_in_all(4, capacities, |layer| layers[layer]);
        assert_eq!(in_order(&[60, 40]), None);
        assert_eq!(in_order(&[50, 50]), Some(10));
        assert_eq!(in_order(&[0, 0, 0, 0]), Some(40));
        assert_eq!(in_all(&[50, 50]), None);
        assert_eq!(in_all(&[50, 45]), Some(3));
    }
}
