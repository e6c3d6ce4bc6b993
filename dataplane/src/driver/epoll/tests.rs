//! What is peculiar to epoll; the contract is tested by the conformance suite.
