package org.apache.hadoop.io.compress;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import org.brotli.dec.BrotliInputStream;

/**
 * Reads what Brotli has compressed. Parquet's reader looks for this very class, and neither Hadoop nor Parquet has it.
 * Nothing is written by it: Headwater's files are written by Arrow.
 */
public class BrotliCodec implements CompressionCodec {

    public CompressionInputStream createInputStream(InputStream in) throws IOException {
        return new Decoded(in);
    }

    public CompressionInputStream createInputStream(InputStream in, Decompressor unused) throws IOException {
        return new Decoded(in);
    }

    public CompressionOutputStream createOutputStream(OutputStream out) {
        throw new UnsupportedOperationException("Brotli is read only");
    }

    public CompressionOutputStream createOutputStream(OutputStream out, Compressor unused) {
        throw new UnsupportedOperationException("Brotli is read only");
    }

    public Class getCompressorType() {
        return null;
    }

    public Compressor createCompressor() {
        return null;
    }

    public Class getDecompressorType() {
        return null;
    }

    public Decompressor createDecompressor() {
        return null;
    }

    public String getDefaultExtension() {
        return ".br";
    }

    static class Decoded extends CompressionInputStream {
        private final InputStream decoded;

        Decoded(InputStream in) throws IOException {
            super(in);
            this.decoded = new BrotliInputStream(in);
        }

        public int read() throws IOException {
            return this.decoded.read();
        }

        public int read(byte[] into, int offset, int length) throws IOException {
            return this.decoded.read(into, offset, length);
        }

        public void resetState() {
            throw new UnsupportedOperationException("a stream is read once");
        }
    }
}
