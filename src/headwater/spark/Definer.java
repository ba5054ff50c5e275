import java.lang.invoke.MethodHandles;

/** Gives a class to the loader that has a class of the same package. */
public class Definer {

    public Class define(Class beside, byte[] code) throws Exception {
        return MethodHandles.privateLookupIn(beside, MethodHandles.lookup()).defineClass(code);
    }
}
