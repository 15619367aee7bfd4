//! softrnic.
