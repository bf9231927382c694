// Speech in a recording, frame by frame: speech silero.onernn samples.f32
// LD_LIBRARY_PATH: the folder of libonernn.so, if the system does not find it.
using System;
using System.Globalization;
using System.IO;
using System.Runtime.InteropServices;

static class Speech
{
    const int Context = 64, Step = 512; // samples of the frame before, and new ones

    [DllImport("onernn")] static extern IntPtr onernn_message();
    [DllImport("onernn")] static extern int onernn_open(
        [MarshalAs(UnmanagedType.LPUTF8Str)] string path, int threads, out IntPtr model);
    [DllImport("onernn")] static extern void onernn_close(IntPtr model);
    [DllImport("onernn")] static extern int onernn_inputs(IntPtr model);
    [DllImport("onernn")] static extern int onernn_stream_open(IntPtr model, out IntPtr stream);
    [DllImport("onernn")] static extern void onernn_stream_close(IntPtr stream);
    [DllImport("onernn")] static extern int onernn_give(
        IntPtr stream, int value, IntPtr numbers, long[] dims);
    [DllImport("onernn")] static extern int onernn_take(
        IntPtr stream, int value, IntPtr numbers, long bytes);
    [DllImport("onernn")] static extern int onernn_run(IntPtr stream);

    static void Check(int status)
    {
        if (status != 0) throw new IOException(Marshal.PtrToStringUTF8(onernn_message()));
    }

    static int Main(string[] arguments)
    {
        if (arguments.Length != 2)
        {
            Console.Error.WriteLine("usage: speech silero.onernn samples.f32");
            return 2;
        }
        Check(onernn_open(arguments[0], 1, out IntPtr model));
        Check(onernn_stream_open(model, out IntPtr stream));

        var frame = new float[Context + Step];
        var probability = new float[1];
        // The stream has the addresses of both arrays, so the collector must not move them.
        var input = GCHandle.Alloc(frame, GCHandleType.Pinned);
        var output = GCHandle.Alloc(probability, GCHandleType.Pinned);
        Check(onernn_give(stream, 0, input.AddrOfPinnedObject(), new long[] { 1, frame.Length }));
        Check(onernn_take(stream, onernn_inputs(model), output.AddrOfPinnedObject(), sizeof(float)));

        byte[] samples = File.ReadAllBytes(arguments[1]);
        for (int at = 0; at + Step * sizeof(float) <= samples.Length; at += Step * sizeof(float))
        {
            Buffer.BlockCopy(samples, at, frame, Context * sizeof(float), Step * sizeof(float));
            Check(onernn_run(stream)); // the state stays in the stream
            Console.WriteLine(probability[0].ToString("F4", CultureInfo.InvariantCulture));
            Array.Copy(frame, Step, frame, 0, Context);
        }
        onernn_stream_close(stream);
        onernn_close(model);
        input.Free();
        output.Free();
        return 0;
    }
}
