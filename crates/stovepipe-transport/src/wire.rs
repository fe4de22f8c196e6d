//! [`Wire`]: how a value becomes bytes for another process, and a value again. The value's type
//! decides what the bytes mean, the transport how they travel.

use thiserror::Error;

/// A value can't be turned into bytes, or bytes into a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}; do all ranks run the same version of the program?")]
pub struct WireError {
    reason: String,
}

impl WireError {
    /// An error with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// A value that can travel to another process.
///
/// # Contract
///
/// - The encoded bytes, the tail after the buffer, decode to an equal value in any process.
/// - They say everything that the value is made of, such as the type and shape of a tensor. So
///   values of varying shapes need no agreement ahead.
/// - Encoding copies the value's data once at most, straight into the buffer. A transport can send
///   the returned tail from where it is.
/// - Decoding copies once at most.
///
/// # Examples
///
/// ```
/// use stovepipe_transport::{Wire, WireError};
///
/// #[derive(Debug, PartialEq)]
/// struct Pixel(u32, u32);
///
/// impl Wire for Pixel {
///     type Tail = [u8; 0];
///
///     fn encode(self, buffer: &mut Vec<u8>) -> Result<[u8; 0], WireError> {
///         buffer.extend(self.0.to_le_bytes());
///         buffer.extend(self.1.to_le_bytes());
///         Ok([])
///     }
///
///     fn decode(bytes: &[u8]) -> Result<Self, WireError> {
///         match bytes.as_chunks() {
///             (&[x, y], []) => Ok(Self(u32::from_le_bytes(x), u32::from_le_bytes(y))),
///             _ => Err(WireError::new(format!("a pixel has 8 bytes, not {}", bytes.len()))),
///         }
///     }
/// }
///
/// let mut buffer = Vec::new();
/// let tail = Pixel(3, 4).encode(&mut buffer)?;
/// buffer.extend(tail);
/// assert_eq!(Pixel::decode(&buffer)?, Pixel(3, 4));
/// assert!(Pixel::decode(&buffer[1..]).is_err());
/// # Ok::<(), WireError>(())
/// ```
pub trait Wire: Sized + Send + 'static {
    /// The last part of an encoded value, which owns its bytes; often all of its data.
    type Tail: AsRef<[u8]> + Send + 'static;

    /// Appends the value to `buffer`, except the tail, which is returned and may be empty. The
    /// buffer may already hold something else.
    ///
    /// # Errors
    ///
    /// If the value can't be read, for example because its device is lost.
    fn encode(self, buffer: &mut Vec<u8>) -> Result<Self::Tail, WireError>;

    /// Makes the value that was encoded as `bytes`.
    ///
    /// # Errors
    ///
    /// If no value has this encoding. Must not panic, whatever the bytes.
    fn decode(bytes: &[u8]) -> Result<Self, WireError>;
}

impl Wire for Vec<u8> {
    type Tail = Self;

    fn encode(self, _: &mut Vec<u8>) -> Result<Self, WireError> {
        Ok(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(bytes.to_vec())
    }
}
