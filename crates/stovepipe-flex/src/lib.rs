//! Flex CPU backend for stovepipe: each rank in a thread pool of its own.
