import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.BaseFileScanTask;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Reads named data files of a table through Iceberg's own reader.
 *
 * Iceberg's reader takes its work from sets of tasks that are staged under an id. Our files hold every column,
 * partition columns too, so a task needs neither the file's partition nor its manifest entry: the files count as
 * unpartitioned. Compiled by Janino: no lambdas, no generics.
 */
public final class TaskSets {

    private final ConcurrentHashMap staged = new ConcurrentHashMap();

    /**
     * The rows of `files`, a JSON array of [path, bytes, rows]. Row groups that cannot match `filter`, a condition on
     * top-level columns, are skipped; rows are not filtered.
     */
    public Dataset read(SparkSession session, String name, String id, String files, String filter) throws Exception {
        SparkSession.setActiveSession(session); // a thread without one knows no catalogs
        Table table = Spark3Util.loadIcebergTable(session, name);
        Expression condition = ExpressionParser.fromJson(filter);
        List named = new ObjectMapper().readTree(filter).findValuesAsText("term");
        ScanTaskSetManager.get().stageTasks(table, id, tasks(table, files, condition));
        staged.put(id, table);
        HashMap options = new HashMap();
        options.put("scan-task-set-id", id); // tells two readings of one table apart
        return Dataset.ofRows(session, DataSourceV2Relation.create(
            new Files(table, id, named), scala.Option.empty(), scala.Option.empty(),
            new CaseInsensitiveStringMap(options), scala.Option.empty()));
    }

    /** From now on frames of `id` read these files, and all of their row groups. */
    public void restage(String id, String files) throws Exception {
        Table table = (Table) staged.get(id);
        ScanTaskSetManager.get().stageTasks(table, id, tasks(table, files, Expressions.alwaysTrue()));
    }

    /** Forgets the files of `id`; frames that read them cannot be run again. */
    public void release(String id) {
        ScanTaskSetManager.get().removeTasks((Table) staged.remove(id), id);
    }

    private static ArrayList tasks(Table table, String files, Expression condition) throws Exception {
        ResidualEvaluator residuals = ResidualEvaluator.unpartitioned(condition);
        String schema = SchemaParser.toJson(table.schema());
        String spec = PartitionSpecParser.toJson(PartitionSpec.unpartitioned());
        ArrayList tasks = new ArrayList();
        Iterator each = new ObjectMapper().readTree(files).iterator();
        while (each.hasNext()) {
            tasks.add(new BaseFileScanTask(file((JsonNode) each.next()), new DeleteFile[0], schema, spec, residuals));
        }
        return tasks;
    }

    private static DataFile file(JsonNode file) {
        return DataFiles.builder(PartitionSpec.unpartitioned())
            .withPath(part(file, 0).asText())
            .withFormat(FileFormat.PARQUET)
            .withFileSizeInBytes(part(file, 1).asLong())
            .withRecordCount(part(file, 2).asLong())
            .build();
    }

    private static JsonNode part(JsonNode file, int index) {
        return (JsonNode) file.get(index);
    }

    /** The staged files as Spark sees a table. */
    static final class Files extends SparkRewriteTable {
        private final List always;

        Files(Table table, String id, List always) {
            super(table, id);
            this.always = always;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Columns(super.newScanBuilder(options), schema(), always);
        }
    }

    /**
     * Reads the columns that Spark asks for and those of the condition: Iceberg's reader cannot evaluate a condition on
     * a column that it does not read.
     */
    static final class Columns implements ScanBuilder, SupportsPushDownRequiredColumns {
        private final ScanBuilder inner;
        private final StructType all;
        private final List always;

        Columns(ScanBuilder inner, StructType all, List always) {
            this.inner = inner;
            this.all = all;
            this.always = always;
        }

        public void pruneColumns(StructType required) {
            StructType wanted = required;
            for (int i = 0; i < always.size(); i++) {
                String name = (String) always.get(i);
                if (!contains(wanted, name)) {
                    wanted = wanted.add(all.fields()[all.fieldIndex(name)]);
                }
            }
            ((SupportsPushDownRequiredColumns) inner).pruneColumns(wanted);
        }

        private static boolean contains(StructType columns, String name) {
            StructField[] fields = columns.fields();
            for (int i = 0; i < fields.length; i++) {
                if (fields[i].name().equals(name)) {
                    return true;
                }
            }
            return false;
        }

        public Scan build() {
            return inner.build();
        }
    }
}
