//! Duration estimates from finished jobs.
