import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.BaseFileScanTask;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Reads named data files of a table through Iceberg's own reader, once or as a stream of them.
 *
 * Iceberg's reader takes its work from sets of tasks that are staged under an id. Our files hold every column,
 * partition columns too, so a task needs neither the file's partition nor its manifest entry: the files count as
 * unpartitioned. Compiled by Janino: no lambdas, no generics.
 */
public final class TaskSets {

    private final ConcurrentHashMap staged = new ConcurrentHashMap();
    private final ConcurrentHashMap streams = new ConcurrentHashMap();

    /**
     * The rows of `files`, a JSON array of [path, bytes, rows]. Row groups that cannot match `filter`, a condition on
     * top-level columns, are skipped; rows are not filtered. Files of the `past` may break what the columns promise now.
     */
    public Dataset read(
            SparkSession session, String name, String id, String files, String filter, boolean past) throws Exception {
        SparkSession.setActiveSession(session); // a thread without one knows no catalogs
        Table now = Spark3Util.loadIcebergTable(session, name);
        Table table = past ? lenient(now) : now;
        JsonNode conditions = withoutUuids(new ObjectMapper().readTree(filter), table.schema());
        Expression condition = ExpressionParser.fromJson(conditions.toString());
        List named = conditions.findValuesAsText("term");
        ScanTaskSetManager.get().stageTasks(table, id, tasks(table, files, condition));
        staged.put(id, table);
        HashMap options = new HashMap();
        options.put("scan-task-set-id", id); // tells two readings of one table apart
        return Dataset.ofRows(session, DataSourceV2Relation.create(
            new Files(table, id, named), scala.Option.empty(), scala.Option.empty(),
            new CaseInsensitiveStringMap(options), scala.Option.empty()));
    }

    /** The conditions without those on UUIDs, which Iceberg orders as pairs of signed numbers. */
    private static JsonNode withoutUuids(JsonNode condition, Schema schema) {
        if (condition.has("term")) {
            Types.NestedField field = schema.findField(condition.get("term").asText());
            boolean isUuid = field == null || field.type().typeId() == Type.TypeID.UUID;
            return isUuid ? (JsonNode) BooleanNode.TRUE : condition;
        }
        if (condition.has("left")) {
            ObjectNode both = (ObjectNode) condition;
            both.set("left", withoutUuids(condition.get("left"), schema));
            both.set("right", withoutUuids(condition.get("right"), schema));
        }
        return condition;
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

    /**
     * A stream of the table's `columns` from the offset `initial` on, up to the head that `advance` tells. `files` is
     * asked for the files between two offsets, which it gets as two lines, whenever a batch is planned. Every batch
     * reads whole files; what offsets mean is known to `files` alone.
     */
    public Dataset stream(
            SparkSession session, String name, String id, StructType columns, String initial, Function files)
            throws Exception {
        SparkSession.setActiveSession(session);
        Table table = Spark3Util.loadIcebergTable(session, name);
        Stream stream = new Stream(session, table, id, columns, initial, files);
        streams.put(id, stream);
        return Dataset.ofRows(session, new StreamingRelationV2(
            scala.Option.empty(), "headwater", stream, new CaseInsensitiveStringMap(new HashMap()),
            DataTypeUtils.toAttributes(columns), scala.Option.empty(), scala.Option.empty(), scala.Option.empty()));
    }

    /** From now on the stream reaches up to this offset. */
    public void advance(String id, String head) {
        ((Stream) streams.get(id)).head = head;
    }

    /** Forgets a stream; a query that reads it must have ended. */
    public void close(String id) {
        streams.remove(id);
    }

    /** The table's rows as of the moment at which a batch is planned. */
    public Dataset moving(SparkSession session, String name) throws Exception {
        SparkSession.setActiveSession(session);
        Table table = Spark3Util.loadIcebergTable(session, name);
        return Dataset.ofRows(session, DataSourceV2Relation.create(
            new Moving(table), scala.Option.empty(), scala.Option.empty(),
            new CaseInsensitiveStringMap(new HashMap()), scala.Option.empty()));
    }

    /** The rows that `frame`, which reads a table of Iceberg and does no more, reads: with the care of `Guarded`. */
    public Dataset guarded(SparkSession session, Dataset frame) {
        LogicalPlan plan = frame.queryExecution().analyzed();
        while (!(plan instanceof DataSourceV2Relation)) {
            plan = (LogicalPlan) plan.children().head();
        }
        DataSourceV2Relation relation = (DataSourceV2Relation) plan;
        // Without a catalog: Spark would look the table up again, and read that one.
        return Dataset.ofRows(session, DataSourceV2Relation.create(
            new Guarded((SparkTable) relation.table()), scala.Option.empty(), scala.Option.empty(),
            relation.options(), scala.Option.empty()));
    }

    /**
     * The table with columns that may be null if they ever could: a change or a past snapshot has files from before
     * they became NOT NULL. Spark leaves out checks for null, and Iceberg refuses files without a required column.
     */
    private static Table lenient(Table table) throws Exception {
        HashSet loose = new HashSet();
        Iterator fields = TypeUtil.indexById(table.schema().asStruct()).values().iterator();
        while (fields.hasNext()) {
            Types.NestedField field = (Types.NestedField) fields.next();
            Iterator schemas = table.schemas().values().iterator();
            while (schemas.hasNext()) {
                Types.NestedField was = ((Schema) schemas.next()).findField(field.fieldId());
                if (field.isRequired() && (was == null || was.isOptional())) {
                    loose.add(Integer.valueOf(field.fieldId()));
                }
            }
        }
        if (loose.isEmpty()) {
            return table;
        }
        JsonNode schema = new ObjectMapper().readTree(SchemaParser.toJson(table.schema()));
        loosen(schema, loose);
        TableMetadata now = ((HasTableOperations) table).operations().current();
        TableMetadata made = TableMetadata.buildFrom(now)
            .setCurrentSchema(SchemaParser.fromJson(schema.toString()), now.lastColumnId())
            .discardChanges()
            .build();
        return new BaseTable(new StaticTableOperations(made, table.io()), table.name());
    }

    /** Lets the fields with these ids be null, wherever they are in a schema's JSON. */
    private static void loosen(JsonNode node, Set ids) {
        String[] inside = {"", "element-", "value-"};
        for (int i = 0; i < inside.length; i++) {
            JsonNode id = node.get(inside[i] + "id");
            if (id != null && ids.contains(Integer.valueOf(id.asInt()))) {
                ((ObjectNode) node).put(inside[i] + "required", false);
            }
        }
        Iterator parts = node.iterator();
        while (parts.hasNext()) {
            loosen((JsonNode) parts.next(), ids);
        }
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

    private static boolean contains(StructType columns, String name) {
        StructField[] fields = columns.fields();
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].name().equals(name)) {
                return true;
            }
        }
        return false;
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

        public Scan build() {
            return inner.build();
        }
    }

    /** A table that is looked at anew for every scan. */
    static final class Moving extends SparkTable {
        Moving(Table table) {
            super(table);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            table().refresh();
            return new GuardedBuilder(new SparkTable(table()).newScanBuilder(options), schema(), table().schema());
        }
    }

    /** A table whose files and row groups are never skipped by a condition on floating-point numbers or UUIDs. */
    static final class Guarded implements SupportsRead, SupportsMetadataColumns {
        private final SparkTable inner;

        Guarded(SparkTable inner) {
            this.inner = inner;
        }

        public String name() {
            return inner.name();
        }

        public StructType schema() {
            return inner.schema();
        }

        public Transform[] partitioning() {
            return inner.partitioning();
        }

        public MetadataColumn[] metadataColumns() {
            return inner.metadataColumns();
        }

        public Set capabilities() {
            HashSet found = new HashSet();
            found.add(TableCapability.BATCH_READ);
            return found;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new GuardedBuilder(inner.newScanBuilder(options), schema(), inner.table().schema());
        }

        public boolean equals(Object other) {
            return other instanceof Guarded && inner.equals(((Guarded) other).inner);
        }

        public int hashCode() {
            return inner.hashCode();
        }
    }

    /**
     * Iceberg's scan without conditions on floats and UUIDs, or their minima and maxima. Its rules are not Spark's: they
     * skip a file of NaN for `>`, which NaN meets in Spark, and a row group whose dictionary has -0.0 for `= 0.0`; and
     * they compare the halves of UUIDs as signed numbers, so that most are outside of the bounds of their own file.
     */
    static final class GuardedBuilder
            implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns, SupportsPushDownLimit,
            SupportsPushDownAggregates {
        private final ScanBuilder inner;
        private final StructType columns;
        private final Schema schema;

        GuardedBuilder(ScanBuilder inner, StructType columns, Schema schema) {
            this.inner = inner;
            this.columns = columns;
            this.schema = schema;
        }

        public Predicate[] pushPredicates(Predicate[] predicates) {
            ArrayList safe = new ArrayList();
            ArrayList rest = new ArrayList();
            for (int i = 0; i < predicates.length; i++) {
                (isSafe(predicates[i]) ? safe : rest).add(predicates[i]);
            }
            Predicate[] pushed = (Predicate[]) safe.toArray(new Predicate[0]);
            Predicate[] unpushed = ((SupportsPushDownV2Filters) inner).pushPredicates(pushed);
            for (int i = 0; i < unpushed.length; i++) {
                rest.add(unpushed[i]);
            }
            return (Predicate[]) rest.toArray(new Predicate[0]);
        }

        private boolean isSafe(Predicate predicate) {
            if (predicate.name().equals("IS_NULL") || predicate.name().equals("IS_NOT_NULL")) {
                return true;
            }
            return haveExactOrder(predicate.references());
        }

        private boolean haveExactOrder(NamedReference[] references) {
            for (int i = 0; i < references.length; i++) {
                if (!hasExactOrder(references[i].fieldNames())) {
                    return false;
                }
            }
            return true;
        }

        /** Whether Iceberg orders values of the column as Spark does. */
        private boolean hasExactOrder(String[] path) {
            DataType type = columns;
            for (int i = 0; i < path.length; i++) {
                if (!(type instanceof StructType) || !contains((StructType) type, path[i])) {
                    return false;
                }
                StructType outer = (StructType) type;
                type = outer.fields()[outer.fieldIndex(path[i])].dataType();
            }
            if (type instanceof StringType) { // as which Spark sees UUIDs
                Types.NestedField field = schema.findField(String.join(".", path));
                return field != null && field.type().typeId() == Type.TypeID.STRING;
            }
            return !(type instanceof FloatType) && !(type instanceof DoubleType);
        }

        public Predicate[] pushedPredicates() {
            return ((SupportsPushDownV2Filters) inner).pushedPredicates();
        }

        public void pruneColumns(StructType required) {
            ((SupportsPushDownRequiredColumns) inner).pruneColumns(required);
        }

        public boolean pushLimit(int limit) {
            return ((SupportsPushDownLimit) inner).pushLimit(limit);
        }

        public boolean isPartiallyPushed() {
            return ((SupportsPushDownLimit) inner).isPartiallyPushed();
        }

        public boolean supportCompletePushDown(Aggregation aggregation) {
            return isSafe(aggregation) && ((SupportsPushDownAggregates) inner).supportCompletePushDown(aggregation);
        }

        public boolean pushAggregation(Aggregation aggregation) {
            return isSafe(aggregation) && ((SupportsPushDownAggregates) inner).pushAggregation(aggregation);
        }

        private boolean isSafe(Aggregation aggregation) {
            AggregateFunc[] functions = aggregation.aggregateExpressions();
            for (int i = 0; i < functions.length; i++) {
                if (!(functions[i] instanceof Count) && !haveExactOrder(functions[i].references())) {
                    return false;
                }
            }
            return true;
        }

        public Scan build() {
            return inner.build();
        }
    }

    static final class At extends Offset {
        private final String json;

        At(String json) {
            this.json = json;
        }

        public String json() {
            return json;
        }
    }

    /**
     * Everything that Spark asks of a stream; only the driver ever sees it. Readers and their partitions, which go to
     * the executors, are Iceberg's own.
     */
    static final class Stream
            implements SupportsRead, ScanBuilder, Scan, MicroBatchStream, SupportsTriggerAvailableNow {
        private static final long LEAST = 1L << 20;
        private static final long MOST = 128L << 20;
        private final SparkSession session;
        private final Table table;
        private final String id;
        private final StructType columns;
        private final String initial;
        private final Function files;
        volatile String head;
        private String last;
        private String planned = "";
        private InputPartition[] partitions = new InputPartition[0];
        private PartitionReaderFactory factory;

        Stream(
                SparkSession session, Table table, String id, StructType columns, String initial, Function files) {
            this.session = session;
            this.table = table;
            this.id = id;
            this.columns = columns;
            this.initial = initial;
            this.files = files;
            this.head = initial;
        }

        public String name() {
            return id;
        }

        public StructType schema() {
            return columns;
        }

        public Set capabilities() {
            HashSet found = new HashSet();
            found.add(TableCapability.MICRO_BATCH_READ);
            return found;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return this;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return columns;
        }

        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return this;
        }

        public Offset initialOffset() {
            return new At(initial);
        }

        public Offset deserializeOffset(String json) {
            return new At(json);
        }

        public void commit(Offset end) {
        }

        public void stop() {
        }

        public void prepareForTriggerAvailableNow() {
            last = head;
        }

        public Offset latestOffset() {
            return new At(last == null ? head : last);
        }

        public Offset latestOffset(Offset start, ReadLimit limit) {
            return latestOffset();
        }

        /** Spark plans a batch several times over; its files are looked up once. */
        public synchronized InputPartition[] planInputPartitions(Offset start, Offset end) {
            String range = start.json() + "\n" + end.json();
            if (!range.equals(planned)) {
                stage((String) files.apply(range));
                planned = range;
            }
            return partitions;
        }

        public synchronized PartitionReaderFactory createReaderFactory() {
            if (factory == null) { // asked for before any file is known: of one that is never opened
                stage("[[\"none.parquet\", 1, 1]]");
                partitions = new InputPartition[0];
                planned = "";
            }
            return factory;
        }

        /** Partitions for all cores, also of a batch that is smaller than what Iceberg reads by one task. */
        private CaseInsensitiveStringMap splits(ArrayList tasks) {
            long bytes = 0;
            for (int i = 0; i < tasks.size(); i++) {
                bytes += ((BaseFileScanTask) tasks.get(i)).length();
            }
            // A little more than its part for each core: files that are not all of one size would make one task more.
            long part = bytes / session.sparkContext().defaultParallelism() / 8 * 9 + 1;
            HashMap options = new HashMap();
            options.put("split-size", Long.toString(Math.min(MOST, Math.max(LEAST, part))));
            options.put("file-open-cost", "1");
            return new CaseInsensitiveStringMap(options);
        }

        private void stage(String listed) {
            if (listed.equals("[]")) {
                partitions = new InputPartition[0];
                return;
            }
            SparkSession.setActiveSession(session);
            try {
                ArrayList tasks = tasks(table, listed, Expressions.alwaysTrue());
                ScanTaskSetManager.get().stageTasks(table, id, tasks);
                ScanBuilder builder = new SparkRewriteTable(table, id).newScanBuilder(splits(tasks));
                ((SupportsPushDownRequiredColumns) builder).pruneColumns(columns);
                Batch batch = builder.build().toBatch();
                partitions = batch.planInputPartitions();
                factory = batch.createReaderFactory();
            } catch (Exception e) {
                throw new RuntimeException(e);
            } finally {
                ScanTaskSetManager.get().removeTasks(table, id);
            }
        }
    }
}
