package org.apache.spark.sql.execution.streaming.checkpointing;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;

/**
 * Checkpoint files in a local folder, written by the JVM itself. Hadoop's own classes start a process for each file that
 * they make or rename (chmod, readlink), which costs 10 to 100 ms. A file is forced to disk before it gets its name, so
 * that a checkpoint survives a machine that goes down.
 */
public class LocalCheckpoints extends FileSystemBasedCheckpointFileManager {
    public LocalCheckpoints(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        java.nio.file.Path target = new File(path.toUri().getPath()).toPath();
        java.nio.file.Path written = target.resolveSibling("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
        try {
            return new Written(new FileOutputStream(written.toFile()), written, target, path, overwrite);
        } catch (IOException failed) {
            throw new java.io.UncheckedIOException(failed);
        }
    }

    static class Written extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FileOutputStream out;
        private final java.nio.file.Path written;
        private final java.nio.file.Path target;
        private final Path path;
        private final boolean overwrite;
        private boolean ended = false;

        Written(FileOutputStream out, java.nio.file.Path written, java.nio.file.Path target, Path path, boolean overwrite) {
            super(out);
            this.out = out;
            this.written = written;
            this.target = target;
            this.path = path;
            this.overwrite = overwrite;
        }

            public void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            flush();
            out.getFD().sync();
            out.close();
            if (!overwrite && target.toFile().exists()) {
                Files.deleteIfExists(written);
                throw new FileAlreadyExistsException("Failed to rename as " + path + " already exists");
            }
            Files.move(written, target, new CopyOption[] {
                StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING});
        }

            public void cancel() {
            if (ended) {
                return;
            }
            ended = true;
            try {
                out.close();
                Files.deleteIfExists(written);
            } catch (IOException failed) {
                throw new java.io.UncheckedIOException(failed);
            }
        }
    }
}
