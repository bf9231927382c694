// Speech in a recording, frame by frame: speech silero.onernn samples.f32
use std::error::Error;
use std::ffi::{c_void, CStr, CString};
use std::io::Read;
use std::os::raw::c_char;
use std::ptr::null_mut;

const CONTEXT: usize = 64; // samples of the frame before
const STEP: usize = 512; // new samples
const FRAME: usize = CONTEXT + STEP;

#[link(name = "onernn")]
extern "C" {
    fn onernn_message() -> *const c_char;
    fn onernn_open(path: *const c_char, threads: i32, model: *mut *mut c_void) -> i32;
    fn onernn_close(model: *mut c_void);
    fn onernn_inputs(model: *const c_void) -> i32;
    fn onernn_stream_open(model: *mut c_void, stream: *mut *mut c_void) -> i32;
    fn onernn_stream_close(stream: *mut c_void);
    fn onernn_give(stream: *mut c_void, value: i32, data: *const c_void, dims: *const i64) -> i32;
    fn onernn_take(stream: *mut c_void, value: i32, data: *mut c_void, bytes: i64) -> i32;
    fn onernn_run(stream: *mut c_void) -> i32;
}

fn check(status: i32) -> Result<(), Box<dyn Error>> {
    if status == 0 {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(onernn_message()) };
    Err(message.to_string_lossy().into())
}

/// A stream of a model, and the memory that it reads and writes.
struct Detector {
    model: *mut c_void,
    stream: *mut c_void,
    memory: Vec<f32>, // a frame, then the probability; it must not grow: the stream has its address
}

impl Detector {
    fn open(path: &str) -> Result<Self, Box<dyn Error>> {
        let path = CString::new(path)?;
        let mut detector =
            Detector { model: null_mut(), stream: null_mut(), memory: vec![0.0; FRAME + 1] };
        let dims = [1, FRAME as i64];
        let memory = detector.memory.as_mut_ptr();
        unsafe {
            check(onernn_open(path.as_ptr(), 1, &mut detector.model))?;
            check(onernn_stream_open(detector.model, &mut detector.stream))?;
            let (stream, output) = (detector.stream, onernn_inputs(detector.model));
            check(onernn_give(stream, 0, memory.cast(), dims.as_ptr()))?;
            check(onernn_take(stream, output, memory.add(FRAME).cast(), 4))?;
        }
        Ok(detector)
    }

    /// Runs one frame; the state stays in the stream.
    fn probability(&mut self, samples: &[f32; STEP]) -> Result<f32, Box<dyn Error>> {
        self.memory[CONTEXT..FRAME].copy_from_slice(samples);
        check(unsafe { onernn_run(self.stream) })?;
        self.memory.copy_within(STEP..FRAME, 0);
        Ok(self.memory[FRAME])
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        unsafe {
            onernn_stream_close(self.stream);
            onernn_close(self.model);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 {
        return Err("usage: speech silero.onernn samples.f32".into());
    }
    let mut detector = Detector::open(&arguments[1])?;
    let mut file = std::fs::File::open(&arguments[2])?;
    let mut bytes = [0u8; 4 * STEP];
    let mut samples = [0f32; STEP];
    while file.read_exact(&mut bytes).is_ok() {
        for (sample, four) in samples.iter_mut().zip(bytes.chunks_exact(4)) {
            *sample = f32::from_le_bytes(four.try_into()?);
        }
        println!("{:.4}", detector.probability(&samples)?);
    }
    Ok(())
}
