// Speech in a recording, frame by frame: speech silero.onernn samples.f32
package main

/*
#cgo LDFLAGS: -lonernn
#include <stdlib.h>
#include "onernn.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"runtime"
	"unsafe"
)

const (
	context = 64  // samples of the frame before
	step    = 512 // new samples
)

func check(status C.int32_t) {
	if status != C.ONERNN_DONE {
		log.Fatal(C.GoString(C.onernn_message()))
	}
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: speech silero.onernn samples.f32")
	}
	runtime.LockOSThread() // onernn_message is about the last call of this thread
	path := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(path))
	var model *C.onernn_model
	var stream *C.onernn_stream
	check(C.onernn_open(path, 1, &model))
	defer C.onernn_close(model)
	check(C.onernn_stream_open(model, &stream))
	defer C.onernn_stream_close(stream)

	// The stream keeps both addresses, which must not be of Go's memory.
	const count = context + step + 1
	memory := C.calloc(count, C.sizeof_float)
	defer C.free(memory)
	numbers := unsafe.Slice((*float32)(memory), count)
	frame, probability := numbers[:count-1], &numbers[count-1]
	dims := [2]C.int64_t{1, context + step}
	check(C.onernn_give(stream, 0, memory, &dims[0]))
	check(C.onernn_take(stream, C.onernn_inputs(model), unsafe.Pointer(probability), C.sizeof_float))

	samples, err := os.Open(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	defer samples.Close()
	for binary.Read(samples, binary.LittleEndian, frame[context:]) == nil {
		check(C.onernn_run(stream)) // the state stays in the stream
		fmt.Printf("%.4f\n", *probability)
		copy(frame, frame[step:])
	}
}
