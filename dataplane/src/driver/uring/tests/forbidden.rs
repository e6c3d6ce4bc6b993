//! Where the ring is forbidden. A seccomp filter holds for the thread that installs it, so each case has a thread.

#![allow(unsafe_code)] // installing a filter

use super::*;
use rustix::thread::set_no_new_privs;

/// The same on every architecture.
const IO_URING_SETUP: u32 = 425;
const IO_URING_ENTER: u32 = 426;
const IO_URING_REGISTER: u32 = 427;

/// This thread's calls of `number` fail with `errno` from now on.
fn deny(number: u32, errno: Errno) {
    let answer = u32::try_from(errno.raw_os_error()).unwrap();
    let word = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let mut filter = [
        // The call's number is the first word of what a filter sees.
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        word(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        word(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | answer),
        word(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    set_no_new_privs(true).unwrap();
    // SAFETY: the program and its four instructions live until the call returns; the kernel copies them.
    let installed =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(installed, 0, "{}", io::Error::last_os_error());
}

fn self_test_without(number: u32, errno: Errno) -> Unusable {
    let trial = std::thread::spawn(move || {
        deny(number, errno);
        let error = self_test().unwrap_err();
        // What is served with instead is not touched by it.
        assert!(super::super::super::epoll::EpollDriver::new(Vec::new()).is_ok());
        error
    });
    trial.join().unwrap()
}

#[test]
fn a_seccomp_profile_forbids_it() {
    let error = self_test_without(IO_URING_SETUP, Errno::PERM);
    assert!(matches!(error, Unusable::Forbidden), "{error:?}");
    assert!(error.to_string().contains("seccomp"));
}

#[test]
fn a_sandbox_hides_it() {
    let error = self_test_without(IO_URING_SETUP, Errno::NOSYS);
    assert!(matches!(error, Unusable::Missing), "{error:?}");
}

/// A profile that allows the first call only.
#[test]
fn a_part_of_it_is_forbidden() {
    let error = self_test_without(IO_URING_REGISTER, Errno::PERM);
    assert!(matches!(error, Unusable::Forbidden), "{error:?}");
    let error = self_test_without(IO_URING_ENTER, Errno::PERM);
    assert!(matches!(error, Unusable::Forbidden), "{error:?}");
}

/// Sets the machine's switch for a moment where that may be done; other tests of the ring may fail meanwhile, so it is
/// run alone and on request.
#[test]
#[ignore = "changes kernel.io_uring_disabled; run it alone, as root"]
#[allow(clippy::print_stdout)] // says why nothing was tested
fn the_kernels_switch_forbids_it() {
    const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
    let before = std::fs::read_to_string(SWITCH).unwrap_or_default();
    if let Err(error) = std::fs::write(SWITCH, "2") {
        println!("skipped: {SWITCH} cannot be written: {error}");
        return;
    }
    let error = self_test().unwrap_err();
    std::fs::write(SWITCH, before).unwrap();
    assert!(matches!(error, Unusable::Disabled(2)), "{error:?}");
    assert!(self_test().is_ok());
}
