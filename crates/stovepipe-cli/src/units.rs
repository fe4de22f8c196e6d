//! Times, bytes and bandwidths as they are written on the command line, with their unit or without
//! one, and as they are shown.
//!
//! A time without a unit is a plain number, of any unit, the same everywhere: times with units and
//! times without don't mix. With a unit it is kept in seconds. Bytes are read and shown by
//! `bytesize`. Libraries for times round to whole nanoseconds and refuse or round what is plain, so
//! times are read here.

use anyhow::{Result, ensure};
use bytesize::ByteSize;

use crate::output;

/// Units of time, each with its seconds; those that end like another come before it.
const TIMES: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
];

/// A kind of things that amounts count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nothing that is said: plain numbers.
    Plain,
    /// Seconds.
    Time,
    /// Bytes.
    Bytes,
}

/// A cost or a bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Amount {
    /// In seconds, in bytes, or plain; a bandwidth in bytes for each of these.
    pub(crate) value: f64,
    unit: Unit,
    /// The text as it was written.
    text: String,
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// The number.
    pub(crate) count: u64,
    has_unit: bool,
}

impl Amount {
    /// One that nobody wrote, with what messages call it.
    pub(crate) fn new(value: f64, unit: Unit, text: &str) -> Self {
        Self { value, unit, text: text.to_owned() }
    }

    /// So many times it.
    pub(crate) fn times(&self, factor: f64) -> Self {
        Self { value: self.value * factor, ..self.clone() }
    }

    /// The part of it that belongs to one of so many slices.
    pub(crate) fn slice(&self, slices: usize) -> Self {
        Self { value: self.value / slices as f64, ..self.clone() }
    }
}

impl Bytes {
    /// The part of them that belongs to one of so many slices.
    pub(crate) fn slice(self, slices: usize) -> Self {
        Self { count: self.count.div_ceil(slices.max(1) as u64), ..self }
    }

    /// Whether any of these is written with a unit, so that others are shown with one.
    pub(crate) fn have_unit<'a>(bytes: impl IntoIterator<Item = &'a Self>) -> bool {
        bytes.into_iter().any(|bytes| bytes.has_unit)
    }
}

/// Reads a time, like `20ms` or `3`.
pub(crate) fn time(text: &str) -> Result<Amount, String> {
    time_of(text).ok_or_else(|| {
        "a time is a finite number of at least 0, with a unit as in 1.5s, 20ms or 300us, or plain"
            .to_owned()
    })
}

/// Reads a cost that may be a time or bytes, like `20ms`, `16MiB` or `3`.
pub(crate) fn cost(text: &str) -> Result<Amount, String> {
    let bytes = || {
        let value = size(text).filter(|_| text.ends_with('B'))?.as_u64() as f64;
        Some(Amount { value, unit: Unit::Bytes, text: text.to_owned() })
    };
    time_of(text).or_else(bytes).ok_or_else(|| {
        "a cost is a finite number of at least 0, plain or with a unit as in 20ms or 16MiB"
            .to_owned()
    })
}

/// Reads bytes, like `16MiB` or `1048576`.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    let whole = || {
        let value: f64 = text.parse().ok()?;
        let is_count = (0.0..u64::MAX as f64).contains(&value) && value.fract() == 0.0;
        is_count.then_some(value as u64)
    };
    let count = text.parse::<u64>().ok().or_else(whole);
    let plain = count.map(|count| Bytes { count, has_unit: false });
    let sized = || Some(Bytes { count: size(text)?.as_u64(), has_unit: true });
    plain.or_else(sized).ok_or_else(|| {
        "bytes are a whole number of at least 0, plain or with a unit as in 16MiB or 2GB".to_owned()
    })
}

/// Reads a bandwidth, like `10Gbit/s`, `1.2GB/s` or `3`.
pub(crate) fn bandwidth(text: &str) -> Result<Amount, String> {
    let read = || {
        let Some(each_second) = text.strip_suffix("/s") else {
            return Some((text.parse().ok()?, Unit::Plain));
        };
        let bytes = match each_second.strip_suffix("bit") {
            // Of the prefixes only the decimal ones stand before bits.
            Some(bits) if !bits.ends_with('i') => size(&format!("{bits}B"))?.as_u64() as f64 / 8.0,
            _ => size(each_second).filter(|_| each_second.ends_with('B'))?.as_u64() as f64,
        };
        Some((bytes, Unit::Time))
    };
    read()
        .filter(|(value, _): &(f64, Unit)| value.is_finite() && *value > 0.0)
        .map(|(value, unit)| Amount { value, unit, text: text.to_owned() })
        .ok_or_else(|| {
            "a bandwidth is a finite number above 0, with a unit as in 10Gbit/s or 1.2GB/s, or plain"
                .to_owned()
        })
}

/// The one unit that amounts have, given with their arguments' names. A bare zero goes with all.
pub(crate) fn common<'a>(
    arguments: impl IntoIterator<Item = (&'a str, &'a [Amount])>,
) -> Result<Unit> {
    let mut first: Option<(&str, &Amount)> = None;
    for (name, amounts) in arguments {
        for amount in amounts.iter().filter(|a| a.unit != Unit::Plain || a.value != 0.0) {
            let (other, begun) = *first.get_or_insert((name, amount));
            ensure!(
                begun.unit == amount.unit,
                "--{other} {} and --{name} {} don't go together: give all a unit of the same kind, \
                 or none",
                begun.text,
                amount.text
            );
        }
    }
    Ok(first.map_or(Unit::Plain, |(_, amount)| amount.unit))
}

impl Unit {
    /// An amount to six digits that mean something, with its unit if it has one.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Plain => output::time(value),
            Self::Bytes => ByteSize(value.round() as u64).to_string(),
            Self::Time => {
                let (unit, seconds) = match value.abs() {
                    0.0 | 1.0.. => ("s", 1.0),
                    1e-3.. => ("ms", 1e-3),
                    1e-6.. => ("µs", 1e-6),
                    _ => ("ns", 1e-9),
                };
                format!("{} {unit}", output::time(value / seconds))
            }
        }
    }

    /// The unit's name at an axis.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Time => "s",
            Self::Bytes => "B",
        }
    }
}

/// Bytes as they are shown: with a unit if others are written with one.
pub(crate) fn show_bytes(count: u64, with_unit: bool) -> String {
    if with_unit { ByteSize(count).to_string() } else { count.to_string() }
}

fn time_of(text: &str) -> Option<Amount> {
    let suffixed = TIMES.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some((number * seconds, Unit::Time))
    });
    let (value, unit) = suffixed.or_else(|| Some((text.parse().ok()?, Unit::Plain)))?;
    let is_time = value.is_finite() && value >= 0.0;
    // A negative zero becomes a zero.
    is_time.then(|| Amount { value: value + 0.0, unit, text: text.to_owned() })
}

/// Bytes with a unit. A `b` may be meant as bits, and more than there are would become fewer.
fn size(text: &str) -> Option<ByteSize> {
    let size: ByteSize = text.parse().ok()?;
    (!text.ends_with('b') && size.as_u64() < u64::MAX).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_plain() {
        for (text, value, unit) in [
            ("20ms", 0.02, Unit::Time),
            ("1.5s", 1.5, Unit::Time),
            ("300us", 0.0003, Unit::Time),
            ("300 µs", 0.0003, Unit::Time),
            ("1e3ns", 1e-6, Unit::Time),
            ("2min", 120.0, Unit::Time),
            ("0.5h", 1800.0, Unit::Time),
            ("2.5", 2.5, Unit::Plain),
        ] {
            let found = time(text).expect(text);
            assert!((found.value - value).abs() < 1e-12 && found.unit == unit, "{text}: {found:?}");
        }
        for text in ["", "s", "-1ms", "nan", "infs", "20 fortnights", "1e308h", "16MiB"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(cost("16KiB").map(|cost| (cost.value, cost.unit)), Ok((16384.0, Unit::Bytes)));
        assert_eq!(cost("2ms").map(|cost| cost.unit), Ok(Unit::Time));
        assert!(cost("16 apples").is_err() && cost("16m").is_err());
    }

    #[test]
    fn bytes_are_whole_and_not_bits() {
        for (text, count, has_unit) in [
            ("1048576", 1 << 20, false),
            ("1e6", 1_000_000, false),
            ("16MiB", 16 << 20, true),
            ("2GB", 2_000_000_000, true),
            ("1.5 KiB", 1536, true),
            ("16G", 16_000_000_000, true),
        ] {
            assert_eq!(bytes(text), Ok(Bytes { count, has_unit }), "{text}");
        }
        for text in ["", "-1", "0.5", "nan", "1e30", "lots", "10Gb", "99999999999EiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(Bytes { count: 9, has_unit: true }.slice(2).count, 5);
        assert_eq!(
            (show_bytes(2048, true), show_bytes(2048, false)),
            ("2.0 KiB".into(), "2048".into())
        );
    }

    #[test]
    fn bandwidths_are_bytes_in_a_second_or_plain() {
        for (text, value, unit) in [
            ("10Gbit/s", 1.25e9, Unit::Time),
            ("1.2GB/s", 1.2e9, Unit::Time),
            ("100 MiB/s", 104_857_600.0, Unit::Time),
            ("12.5e6", 12.5e6, Unit::Plain),
        ] {
            let found = bandwidth(text).expect(text);
            assert_eq!((found.value, found.unit), (value, unit), "{text}");
        }
        for text in ["", "0", "-5", "nan", "inf", "0GB/s", "10Gb/s", "10Gbit", "/s", "2Kibit/s"] {
            assert!(bandwidth(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units_do_not_mix() {
        let all = |texts: &[&str]| -> Vec<Amount> {
            texts.iter().map(|text| cost(text).expect(text)).collect()
        };
        let (united, plain, zero) = (all(&["20ms", "0"]), all(&["3"]), all(&["0"]));
        let both = |a, b| common([("forward", a), ("latency", b)]);
        assert_eq!(both(&united, &zero).ok(), Some(Unit::Time));
        assert_eq!(both(&zero, &plain).ok(), Some(Unit::Plain));
        let error = both(&united, &plain).expect_err("mixed").to_string();
        assert!(error.starts_with("--forward 20ms and --latency 3 don't go together"), "{error}");
        assert!(both(&united, &all(&["1KiB"])).is_err());
    }

    #[test]
    fn amounts_are_shown_with_their_unit() {
        for (value, text) in
            [(0.0, "0 s"), (90.0, "90 s"), (0.0285, "28.5 ms"), (3e-6, "3 µs"), (5e-8, "50 ns")]
        {
            assert_eq!(Unit::Time.show(value), text);
        }
        assert_eq!(Unit::Plain.show(28.5), "28.5");
        assert_eq!(Unit::Bytes.show(2048.0), "2.0 KiB");
    }
}
