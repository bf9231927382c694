// Speech in a recording, frame by frame, with Java 22 or newer:
// java --enable-native-access=ALL-UNNAMED Speech.java silero.onernn samples.f32
// LIBONERNN: the path of libonernn.so, if the system does not find it.

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;

public class Speech {
  static final int CONTEXT = 64, STEP = 512; // samples of the frame before, and new ones

  static final SymbolLookup LIBRARY =
      SymbolLookup.libraryLookup(
          System.getenv().getOrDefault("LIBONERNN", "libonernn.so"), Arena.global());
  static final MethodHandle MESSAGE = function("message", ADDRESS);
  static final MethodHandle OPEN = function("open", JAVA_INT, ADDRESS, JAVA_INT, ADDRESS);
  static final MethodHandle INPUTS = function("inputs", JAVA_INT, ADDRESS);
  static final MethodHandle STREAM_OPEN = function("stream_open", JAVA_INT, ADDRESS, ADDRESS);
  static final MethodHandle GIVE =
      function("give", JAVA_INT, ADDRESS, JAVA_INT, ADDRESS, ADDRESS);
  static final MethodHandle TAKE =
      function("take", JAVA_INT, ADDRESS, JAVA_INT, ADDRESS, JAVA_LONG);
  static final MethodHandle RUN = function("run", JAVA_INT, ADDRESS);
  static final MethodHandle STREAM_CLOSE = close("stream_close");
  static final MethodHandle CLOSE = close("close");

  static MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
    return handle(name, FunctionDescriptor.of(result, arguments));
  }

  static MethodHandle close(String name) {
    return handle(name, FunctionDescriptor.ofVoid(ADDRESS));
  }

  static MethodHandle handle(String name, FunctionDescriptor types) {
    return Linker.nativeLinker().downcallHandle(LIBRARY.find("onernn_" + name).get(), types);
  }

  static void check(int status) throws Throwable {
    if (status != 0) {
      MemorySegment text = (MemorySegment) MESSAGE.invokeExact();
      throw new IOException(text.reinterpret(Long.MAX_VALUE).getString(0));
    }
  }

  public static void main(String[] arguments) throws Throwable {
    if (arguments.length != 2) {
      System.err.println("usage: Speech silero.onernn samples.f32");
      System.exit(2);
    }
    try (Arena arena = Arena.ofConfined(); // its memory stays where it is until the end
        FileChannel samples = FileChannel.open(Path.of(arguments[1]))) {
      MemorySegment opened = arena.allocate(ADDRESS);
      check((int) OPEN.invokeExact(arena.allocateFrom(arguments[0]), 1, opened));
      MemorySegment model = opened.get(ADDRESS, 0);
      check((int) STREAM_OPEN.invokeExact(model, opened));
      MemorySegment stream = opened.get(ADDRESS, 0);

      MemorySegment frame = arena.allocate(JAVA_FLOAT, CONTEXT + STEP);
      MemorySegment probability = arena.allocate(JAVA_FLOAT);
      MemorySegment dims = arena.allocateFrom(JAVA_LONG, 1, CONTEXT + STEP);
      check((int) GIVE.invokeExact(stream, 0, frame, dims));
      int output = (int) INPUTS.invokeExact(model);
      check((int) TAKE.invokeExact(stream, output, probability, probability.byteSize()));

      MemorySegment added = frame.asSlice(4 * CONTEXT);
      for (long at = 0; at + 4 * STEP <= samples.size(); at += 4 * STEP) {
        samples.read(added.asByteBuffer().order(ByteOrder.nativeOrder()), at);
        check((int) RUN.invokeExact(stream)); // the state stays in the stream
        System.out.printf("%.4f%n", probability.get(JAVA_FLOAT, 0));
        MemorySegment.copy(frame, 4 * STEP, frame, 0, 4 * CONTEXT);
      }
      STREAM_CLOSE.invokeExact(stream);
      CLOSE.invokeExact(model);
    }
  }
}
