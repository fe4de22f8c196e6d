//! Packets as bytes for another process.
//!
//! A packet is encoded as:
//!
//! 1. the number of sections, and the number of parts of each
//! 2. the number of parts
//! 3. the parts, one after the other
//!
//! A part begins with a byte for its kind, or for a part that isn't there. After that byte a
//! tensor has its type (one byte), its rank, its shape, and its elements as the sender's
//! processor lays them out. All other numbers have 64 bits, the lowest byte first.
//!
//! Values are decoded on the host. The stage that receives them moves them to its device.

use std::hash::{Hash, Hasher};

use burn::tensor::{Bool, BoolStore, DType, Device, Int, Tensor, TensorData, bf16, f16};
use stovepipe_transport::{Wire, WireError};

use crate::value::packet::Packet;
use crate::value::part::{Absent, HostPart, Part, PartKind};

/// The byte for a gradient that isn't there.
const NO_GRADIENT: u8 = 0;
/// The byte for an optional value that isn't there.
const ABSENT: u8 = 1;
/// The bytes for tensors, by their kind.
const KINDS: [(u8, PartKind); 3] = [(2, PartKind::Float), (3, PartKind::Int), (4, PartKind::Bool)];

/// The types that can be encoded, by their number in the bytes.
const TYPES: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

/// Makes a tensor on the host of a part's elements.
pub(crate) fn into_part(part: HostPart) -> Result<Box<dyn Part>, WireError> {
    fn tensor<const D: usize>(HostPart { kind, data }: HostPart) -> Box<dyn Part> {
        let options = (&Device::flex(), data.dtype());
        match kind {
            PartKind::Float => Box::new(Tensor::<D>::from_data(data, options)),
            PartKind::Int => Box::new(Tensor::<D, Int>::from_data(data, options)),
            PartKind::Bool => Box::new(Tensor::<D, Bool>::from_data(data, options)),
        }
    }
    Ok(match part.data.rank() {
        1 => tensor::<1>(part),
        2 => tensor::<2>(part),
        3 => tensor::<3>(part),
        4 => tensor::<4>(part),
        5 => tensor::<5>(part),
        6 => tensor::<6>(part),
        7 => tensor::<7>(part),
        8 => tensor::<8>(part),
        rank => {
            let reason = format!("tensors of rank {rank} can't be sent: at most rank 8 can");
            return Err(WireError::new(reason));
        }
    })
}

/// The data of a packet's last tensor, which isn't copied into the buffer.
pub struct Tail(Option<TensorData>);

impl AsRef<[u8]> for Tail {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map(TensorData::as_bytes).unwrap_or_default()
    }
}

impl Wire for Packet {
    type Tail = Tail;

    fn encode(self, buffer: &mut Vec<u8>) -> Result<Tail, WireError> {
        let mut tail = Tail(None);
        let (parts, sections) = self.into_pieces();
        push_numbers(buffer, [sections.len()].into_iter().chain(sections).chain([parts.len()]));
        for part in parts {
            buffer.extend_from_slice(std::mem::replace(&mut tail, Tail(None)).as_ref());
            let Some(part) = part else {
                buffer.push(NO_GRADIENT);
                continue;
            };
            let Some(HostPart { kind, data }) = part.into_host() else {
                buffer.push(ABSENT);
                continue;
            };
            let number = TYPES.iter().position(|known| *known == data.dtype());
            let number = number.ok_or_else(|| {
                WireError::new(format!("tensors of type {:?} can't be sent", data.dtype()))
            })?;
            let kind_byte = KINDS.iter().find(|(_, known)| *known == kind).map(|(byte, _)| *byte);
            buffer.extend(kind_byte.into_iter().chain([number as u8]));
            push_numbers(buffer, [data.rank()].into_iter().chain(data.shape().iter().copied()));
            tail = Tail(Some(data));
        }
        Ok(tail)
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader(bytes);
        let packet = reader.packet();
        let packet = packet?.filter(|_| reader.0.is_empty());
        packet.ok_or_else(|| WireError::new("a boundary value arrived that can't be read"))
    }
}

fn push_numbers(buffer: &mut Vec<u8>, numbers: impl Iterator<Item = usize>) {
    buffer.extend(numbers.flat_map(|number| (number as u64).to_le_bytes()));
}

/// The bytes that haven't been read yet. Methods return `None` if too few are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<usize>> {
        // A count above an eighth of the bytes can't be right, and must not allocate memory.
        (count <= self.0.len() / 8).then_some(())?;
        (0..count).map(|_| self.number()).collect()
    }

    fn packet(&mut self) -> Result<Option<Packet>, WireError> {
        let head = self.number().and_then(|count| self.numbers(count)).zip(self.number());
        let Some((sections, count)) = head.filter(|(_, count)| *count <= self.0.len()) else {
            return Ok(None);
        };
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let part = match self.byte() {
                Some(NO_GRADIENT) => None,
                Some(ABSENT) => Some(Box::new(Absent) as Box<dyn Part>),
                Some(byte) => {
                    let known = KINDS.iter().find(|(kind_byte, _)| *kind_byte == byte);
                    match known.and_then(|(_, kind)| self.host_part(*kind)) {
                        Some(part) => Some(into_part(part)?),
                        None => return Ok(None),
                    }
                }
                None => return Ok(None),
            };
            parts.push(part);
        }
        Ok(Packet::from_pieces(parts, sections))
    }

    fn host_part(&mut self, kind: PartKind) -> Option<HostPart> {
        let dtype = *TYPES.get(usize::from(self.byte()?))?;
        let is_bool = matches!(dtype, DType::Bool(_));
        let fits = match kind {
            PartKind::Float => dtype.is_float(),
            PartKind::Int => !dtype.is_float() && !is_bool,
            PartKind::Bool => is_bool,
        };
        let rank = self.number().filter(|_| fits)?;
        let shape = self.numbers(rank)?;
        let length =
            shape.iter().try_fold(dtype.size(), |product, axis| product.checked_mul(*axis));
        let data = tensor_data(self.take(length?)?, shape, dtype)?;
        Some(HostPart { kind, data })
    }
}

/// Makes a tensor's data of its bytes.
///
/// The bytes are collected as elements, because Burn would copy plain bytes once more to align
/// them.
fn tensor_data(bytes: &[u8], shape: Vec<usize>, dtype: DType) -> Option<TensorData> {
    macro_rules! elements {
        ($type:ty) => {{
            let (chunks, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            let elements: Vec<$type> = chunks.iter().map(|c| <$type>::from_ne_bytes(*c)).collect();
            TensorData::new(elements, shape)
        }};
    }
    Some(match dtype {
        DType::F64 => elements!(f64),
        DType::F32 => elements!(f32),
        DType::F16 => elements!(f16),
        DType::BF16 => elements!(bf16),
        DType::I64 => elements!(i64),
        DType::I32 => elements!(i32),
        DType::I16 => elements!(i16),
        DType::I8 => elements!(i8),
        DType::U64 => elements!(u64),
        DType::U32 => elements!(u32),
        DType::U16 => elements!(u16),
        DType::U8 => elements!(u8),
        DType::Bool(_) => {
            TensorData::new(bytes.iter().map(|byte| *byte != 0).collect::<Vec<bool>>(), shape)
        }
        _ => return None,
    })
}

/// Hashes all that an encoding contains, without building it.
impl Hash for Packet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sections().hash(state);
        self.parts().len().hash(state);
        for part in self.parts() {
            let host = part.as_ref().map(|part| part.clone_box().into_host());
            let host = host.map(|host| host.map(|HostPart { kind, data }| (kind, data)));
            std::mem::discriminant(&host).hash(state);
            if let Some(Some((kind, data))) = host {
                (kind, data.dtype(), &**data.shape(), data.as_bytes()).hash(state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::value::boundary::{Boundary, from_parts, into_packet};

    fn sent(packet: Packet) -> Packet {
        let mut buffer = vec![0xff; 3];
        let tail = packet.encode(&mut buffer).expect("encodes");
        buffer.extend(tail.as_ref());
        Packet::decode(&buffer[3..]).expect("decodes")
    }

    fn round_trip<T: Boundary>(value: T) -> T {
        from_parts(sent(into_packet(value)).into_values()).expect("the same type")
    }

    #[test]
    fn every_kind_type_and_rank_comes_back() {
        let device = Device::flex();
        let floats =
            Tensor::<3>::from_data([[[1.5f32, -2.0]], [[f32::MIN_POSITIVE, 0.1]]], &device);
        for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
            let before = floats.clone().cast(dtype);
            let after = round_trip(before.clone());
            assert_eq!(after.clone().into_data(), before.into_data());
            assert_eq!(after.dtype(), DType::from(dtype));
        }
        let ints = Tensor::<1, Int>::from_data([i32::MIN, 7], &device);
        let bools = Tensor::<2, Bool>::from_data([[true, false, true]], &device);
        let value = (ints.clone(), (None::<Tensor<2>>, Some(bools.clone())));
        let (found, (nothing, found_bools)) = round_trip(value);
        assert_eq!(found.into_data(), ints.into_data());
        assert!(nothing.is_none());
        assert_eq!(found_bools.map(Tensor::into_data), Some(bools.into_data()));
        let empty = round_trip(Tensor::<8>::zeros([2, 1, 3, 0, 1, 1, 1, 1], &device));
        assert_eq!(empty.dims(), [2, 1, 3, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_missing_gradient_and_joined_values_stay_what_they_are() {
        let ones = || Box::new(Tensor::<1>::ones([2], &Device::flex())) as Box<dyn Part>;
        let first = Packet::gradients(vec![None, Some(ones())]);
        let second = Packet::gradients(vec![None]);
        let found = sent(Packet::join(vec![first, second])).split();
        let present: Vec<Vec<bool>> = found
            .into_iter()
            .map(|packet| packet.into_gradients().iter().map(Option::is_some).collect())
            .collect();
        assert_eq!(present, [vec![false, true], vec![false]]);
    }

    #[test]
    fn truncated_and_longer_bytes_are_refused_and_changed_ones_dont_panic() {
        let mut good = Vec::new();
        let packet = into_packet(Tensor::<2>::ones([2, 3], &Device::flex()));
        let tail = packet.encode(&mut good).expect("encodes");
        good.extend(tail.as_ref());
        for length in 0..good.len() {
            assert!(Packet::decode(&good[..length]).is_err(), "{length} bytes");
        }
        let longer = [&*good, &[0]].concat();
        assert!(Packet::decode(&longer).is_err());
        for place in 0..good.len() {
            // The changed bytes may decode or not, but must not panic.
            let mut other = good.clone();
            other[place] ^= 0xff;
            let _ = Packet::decode(&other);
        }
    }

    #[test]
    fn hashes_tell_values_apart() {
        let hash = |value: [f32; 2], shape: [usize; 2]| {
            let tensor = Tensor::<1>::from_data(value, &Device::flex()).reshape(shape);
            let mut hasher = std::hash::DefaultHasher::new();
            into_packet(tensor).hash(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hash([1.0, 2.0], [1, 2]), hash([1.0, 2.0], [1, 2]));
        assert_ne!(hash([1.0, 2.0], [1, 2]), hash([2.0, 1.0], [1, 2]));
        assert_ne!(hash([1.0, 2.0], [1, 2]), hash([1.0, 2.0], [2, 1]));
    }
}
