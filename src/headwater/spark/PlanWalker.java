import java.util.ArrayDeque;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.TreeMap;

import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedHint;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;

/**
 * Lists everything that a plan is made of, in one call from Python.
 *
 * A plan's children are not all of it: common table expressions sit in tuples, subqueries in expressions, options in
 * maps. So this follows every constructor argument of every node, whatever holds it, and reports each class it meets;
 * what it cannot look into it reports as a value. It decides nothing. Compiled by Janino: no lambdas, no generics.
 *
 * A line is a kind and its fields, separated by tabs; tabs, line ends and backslashes within a field are escaped.
 */
public final class PlanWalker {

    /** The classes, relations, functions, table functions, hints and CTE names of a parsed plan, and its root's class. */
    public String parts(Object plan) {
        LinkedHashSet lines = new LinkedHashSet();
        lines.add(line("root", plan.getClass().getName()));
        Iterator all = reachable(plan).iterator();
        while (all.hasNext()) {
            Object each = all.next();
            lines.add(line(each instanceof TreeNode ? "node" : "value", each.getClass().getName()));
            describe(each, lines);
        }
        return join(lines);
    }

    /** The classes of an analyzed plan, and its leaves by what they read, so that two instances of one leaf are equal. */
    public String reads(Object plan) {
        LinkedHashSet lines = new LinkedHashSet();
        Iterator all = reachable(plan).iterator();
        while (all.hasNext()) {
            Object each = all.next();
            if (each instanceof TreeNode) {
                lines.add(line("node", each.getClass().getName()));
            }
            if (each instanceof LeafNode) {
                lines.add(line("leaf", each.getClass().getName(), source(each)));
            }
        }
        return join(lines);
    }

    private static void describe(Object node, LinkedHashSet lines) {
        if (node instanceof UnresolvedRelation) {
            UnresolvedRelation relation = (UnresolvedRelation) node;
            lines.add("relation" + fields(relation.multipartIdentifier()));
            if (relation.isStreaming()) {
                lines.add("streaming");
            }
            if (!relation.options().isEmpty()) {
                lines.add("options");
            }
        } else if (node instanceof UnresolvedFunction) {
            lines.add("function" + fields(((UnresolvedFunction) node).nameParts()));
        } else if (node instanceof UnresolvedTableValuedFunction) {
            UnresolvedTableValuedFunction function = (UnresolvedTableValuedFunction) node;
            lines.add("table_function" + fields(function.name()));
            if (function.functionArgs().size() > 3 && "range".equalsIgnoreCase(String.valueOf(function.name().last()))) {
                lines.add("partitions");
            }
        } else if (node instanceof UnresolvedGenerator) {
            FunctionIdentifier name = ((UnresolvedGenerator) node).name();
            lines.add(name.database().isEmpty() ? line("function", name.funcName()) : line("function", name.toString(), ""));
        } else if (node instanceof UnresolvedHint) {
            UnresolvedHint hint = (UnresolvedHint) node;
            lines.add("hint\t" + escape(hint.name()) + fields(hint.parameters()));
        } else if (node instanceof UnresolvedWith) {
            describeWith((UnresolvedWith) node, lines);
        }
    }

    private static void describeWith(UnresolvedWith with, LinkedHashSet lines) {
        if (with.allowRecursion()) {
            lines.add("recursive");
        }
        scala.collection.Iterator relations = with.cteRelations().iterator();
        while (relations.hasNext()) {
            lines.add(line("cte", String.valueOf(((scala.Product) relations.next()).productElement(0))));
        }
    }

    private static String source(Object leaf) {
        if (leaf instanceof DataSourceV2Relation) {
            DataSourceV2Relation relation = (DataSourceV2Relation) leaf;
            String catalog = relation.catalog().isEmpty() ? "" : ((org.apache.spark.sql.connector.catalog.CatalogPlugin) relation.catalog().get()).name();
            TreeMap options = new TreeMap(relation.options());
            return catalog + " " + relation.identifier() + " " + relation.table().name() + " " + options;
        }
        if (leaf instanceof LogicalRDD) {
            return "rdd " + ((LogicalRDD) leaf).rdd().id();
        }
        if (leaf instanceof LogicalRelation && ((LogicalRelation) leaf).relation() instanceof HadoopFsRelation) {
            return "files " + ((HadoopFsRelation) ((LogicalRelation) leaf).relation()).location().rootPaths();
        }
        return "instance " + System.identityHashCode(leaf);
    }

    private static Iterable reachable(Object start) {
        IdentityHashMap seen = new IdentityHashMap();
        java.util.ArrayList found = new java.util.ArrayList();
        ArrayDeque waiting = new ArrayDeque();
        waiting.push(start);
        while (!waiting.isEmpty()) {
            Object each = waiting.pop();
            if (seen.put(each, Boolean.TRUE) == null) {
                if (!isPlainHolder(each)) {
                    found.add(each);
                }
                pushParts(each, waiting);
            }
        }
        return found;
    }

    private static boolean isPlainHolder(Object each) {
        return each instanceof scala.collection.Iterable || each instanceof scala.Option || each instanceof scala.Tuple2
            || each instanceof scala.Tuple3 || each instanceof Object[];
    }

    private static void pushParts(Object each, ArrayDeque waiting) {
        if (each instanceof DataType) {
            return;
        }
        if (each instanceof TreeNode) {
            pushAll(((TreeNode) each).children().iterator(), waiting);
        }
        if (each instanceof scala.collection.Iterable) {
            pushAll(((scala.collection.Iterable) each).iterator(), waiting);
        } else if (each instanceof scala.Product) {
            pushAll(((scala.Product) each).productIterator(), waiting);
        } else if (each instanceof Object[]) {
            Object[] items = (Object[]) each;
            for (int i = 0; i < items.length; i++) {
                push(items[i], waiting);
            }
        } else if (each instanceof java.util.Map) {
            push(((java.util.Map) each).keySet().toArray(), waiting);
            push(((java.util.Map) each).values().toArray(), waiting);
        } else if (each instanceof java.util.Collection) {
            push(((java.util.Collection) each).toArray(), waiting);
        }
    }

    private static void pushAll(scala.collection.Iterator items, ArrayDeque waiting) {
        while (items.hasNext()) {
            push(items.next(), waiting);
        }
    }

    private static void push(Object item, ArrayDeque waiting) {
        if (item != null) {
            waiting.push(item);
        }
    }

    private static String fields(scala.collection.Iterable names) {
        StringBuilder text = new StringBuilder();
        scala.collection.Iterator each = names.iterator();
        while (each.hasNext()) {
            text.append('\t').append(escape(String.valueOf(each.next())));
        }
        return text.toString();
    }

    private static String line(String kind, String field) {
        return kind + "\t" + escape(field);
    }

    private static String line(String kind, String first, String second) {
        return line(kind, first) + "\t" + escape(second);
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r");
    }

    private static String join(LinkedHashSet lines) {
        StringBuilder text = new StringBuilder();
        Iterator each = lines.iterator();
        while (each.hasNext()) {
            text.append((String) each.next()).append('\n');
        }
        return text.toString();
    }
}
